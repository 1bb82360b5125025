"""The tokenizer of the small default policy: byte-level BPE, ChatML turns."""

from collections.abc import Iterable
from typing import Any

END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = ("<|im_start|>", END_OF_TURN, "<|pad|>")
WORDS = r"\p{N}|[\p{Lu}\p{Lt}]\p{L}*| ?[\p{Ll}\p{Lo}\p{Lm}]\p{L}*| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What BPE may merge. A space joins the lower-case word after it, never a capitalised one: so a
name has the same tokens inside a sentence and right behind a quote, and can be copied."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """A ``PreTrainedTokenizerFast`` with at most ``vocab_size`` entries.

    Digits stand alone, so that shown ids and years are copied piece by piece and a model of
    few parameters needs no entry for each.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # untyped upstream
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=16384,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
