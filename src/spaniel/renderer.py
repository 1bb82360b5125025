"""Messages to token ids, append-only. With ``chat_template.py``, all that knows a template.

A trajectory is one ledger of ids that only grows:

    initial(system, user) | sampled ids | observation(text) | sampled ids | observation(text) ...

Ids that were sampled are never rebuilt from text, so what a template would do to an
assistant message on a second rendering (trim it, re-tokenise it) cannot reach the ledger.
What could is checked when the renderer is made, and refused.
"""

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from spaniel.chat_template import ChatTemplate
from spaniel.errors import ConfigError
from spaniel.types import Message

_PROBE_TEXTS = ("Search", " two  spaces ", "\n\nlines\n", 'a.b , "c" !', "naïve 東京 🙂")


class Renderer(Protocol):
    """Gives the ids of everything in a trajectory that the policy did not sample."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Sampling one of these ends the turn."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal for two renderers that turn equal text into equal ids."""
        ...

    def initial(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Encode the first prompt: ``[system, user]`` or ``[user]``, then the generation prompt.

        Raises:
            ConfigError: ``messages`` have other roles.
        """
        ...

    def observation(self, text: str, *, ended: bool) -> tuple[int, ...]:
        """Encode what follows a completion, up to the next generation prompt.

        Args:
            text: what the environment says back; shown to the policy as a user message.
            ended: the policy sampled one of ``stop_ids`` itself. If not, the end-of-turn marker
                comes first, as context.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Read sampled ids; a stop id at the end is left out, other markers stay visible.

        Total: bytes that are not UTF-8 become U+FFFD.
        """
        ...

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Encode text that an assistant wrote, and its end of turn: for demonstrations only."""
        ...


class ByteRenderer:
    """UTF-8 bytes as ids 0-255 and four turn markers above: needs no tokenizer.

    For scripted policies, endpoints that take text only, and tests.
    """

    SYSTEM, USER, ASSISTANT, END = 256, 257, 258, 259
    vocab_size = 260

    stop_ids = frozenset({END})
    fingerprint = "bytes-1"

    def initial(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Encode the first prompt; see ``Renderer``."""
        system, user = _first_messages(messages)
        opening = () if system is None else (self.SYSTEM, *_utf8(system), self.END)
        return (*opening, self.USER, *_utf8(user), self.END, self.ASSISTANT)

    def observation(self, text: str, *, ended: bool) -> tuple[int, ...]:
        """Encode what follows a completion; see ``Renderer``."""
        closing = () if ended else (self.END,)
        return (*closing, self.USER, *_utf8(text), self.END, self.ASSISTANT)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Read sampled ids; markers inside read ``<|user|>``, ids of no meaning U+FFFD."""
        if token_ids and token_ids[-1] == self.END:
            token_ids = token_ids[:-1]
        shown = {
            self.SYSTEM: b"<|system|>",
            self.USER: b"<|user|>",
            self.ASSISTANT: b"<|assistant|>",
            self.END: b"<|end|>",
        }
        unknown = "\ufffd".encode()
        parts = (bytes((i,)) if 0 <= i < 256 else shown.get(i, unknown) for i in token_ids)
        return b"".join(parts).decode("utf-8", errors="replace")

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Encode text that an assistant wrote, and its end of turn."""
        return (*_utf8(text), self.END)


class ChatRenderer:
    """Renders with the chat template and the vocabulary of a Hugging Face tokenizer.

    When made, it renders test conversations of the shape ``[system, user, assistant, user
    (observation), assistant, user (observation) ...]``, takes the template's own text around
    the contents, and checks that this text never depends on the contents or on their number.
    From then on it only puts pieces together. Each stretch of text between two special tokens
    is encoded as one, with special tokens written in it split into plain text, so that a
    document that says ``<|im_end|>`` cannot end a turn. System, user and observation texts
    are trimmed where the template trims them. Trimming of assistant texts is harmless: their
    ids are never rebuilt.

    Args:
        tokenizer: a ``PreTrainedTokenizerBase`` with a chat template. Copied, since encoding
            changes its state.
        enable_thinking: passed to the template. Where off, a template may put an empty think
            block into the generation prompt; it stays in the ledger as context.
        tool_responses: every observation is wrapped in ``<tool_response>`` tags, which lets
            Qwen3's template keep the reasoning of earlier turns.
        stop_ids: further ids that end a turn, such as the model's ``eos_token_id`` list.

    Attributes:
        end_id: the template's end-of-turn marker.
        notes: what a user should know about this template, one sentence each.

    Raises:
        ConfigError: there is no template, the template is not append-only for this shape,
            or the tokenizer cannot keep turns and texts apart.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        enable_thinking: bool = False,
        tool_responses: bool = False,
        stop_ids: Iterable[int] = (),
    ) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._tool_responses = tool_responses
        added = tokenizer.added_tokens_decoder.items()
        self._special: dict[str, int] = {
            token.content: index for index, token in added if token.special
        }
        template = ChatTemplate(
            self._tokenizer, enable_thinking=enable_thinking, tool_responses=tool_responses
        )
        self._name = template.name
        self._layout = template.find_layout()
        self._prompt = self._split(self._layout.prompt)
        self.end_id, *self._after_turn = self._split_end_of_turn()
        eos = tokenizer.eos_token_id
        self.stop_ids = frozenset({self.end_id, *stop_ids, *(() if eos is None else (eos,))})
        self._check_encoding()
        self.notes = (*template.notes(self._layout), *self._vocabulary_notes())
        self.fingerprint = self._hash(template.source)

    def initial(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Encode the first prompt; see ``Renderer``."""
        return self._ids([*self._opening(*_first_messages(messages)), *self._prompt])

    def observation(self, text: str, *, ended: bool) -> tuple[int, ...]:
        """Encode what follows a completion; see ``Renderer``.

        Raises:
            ConfigError: ``tool_responses`` was promised and ``text`` is not one.
        """
        shown = self._shown("user", text)
        if self._tool_responses and not _is_tool_response(shown):
            raise ConfigError(
                "observations must start with <tool_response> and end with </tool_response> when "
                f"tool_responses is on, got {text[:60]!r}: use a dialect that writes them"
            )
        closing = () if ended else (self.end_id,)
        return self._ids([*closing, *self._after_turn, shown, *self._prompt])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Read sampled ids; see ``Renderer``. Ids that no token has read as nothing."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Encode text that an assistant wrote, and the end-of-turn marker."""
        return (*self._plain(text), self.end_id)

    def _opening(self, system: str | None, user: str) -> list[int | str]:
        layout = self._layout
        if system is not None and layout.opening is not None:
            before_system, before_user = map(self._split, layout.opening)
            shown = self._shown("system", system)
            return [*before_system, shown, *before_user, self._shown("user", user)]
        if layout.bare_opening is None:
            raise ConfigError(
                f"{self._name}: the chat template needs a system message, got a user message alone"
            )
        text = user if system is None else f"{system}\n\n{user}"
        return [*self._split(layout.bare_opening), self._shown("user", text)]

    def _shown(self, role: str, text: str) -> str:
        return text.strip() if role in self._layout.trimmed_roles else text

    def _split(self, text: str) -> list[int | str]:
        """Cut the template's own text at its special tokens: ids, and plain text between."""
        names = sorted(self._special, key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, names)) + ")", text) if names else [text]
        pieces: list[int | str] = [self._special.get(part, part) for part in parts if part]
        return pieces

    def _split_end_of_turn(self) -> tuple[int, *tuple[int | str, ...]]:
        pieces = self._split(self._layout.closed)
        first = pieces[0] if pieces else ""
        if not isinstance(first, int):
            raise ConfigError(
                f"{self._name}: an assistant turn must end with one special token of the "
                f"tokenizer, got {self._layout.closed!r} after it: add the marker to the "
                "tokenizer as a special token, or set another chat_template"
            )
        return (first, *pieces[1:])

    def _ids(self, pieces: Iterable[int | str]) -> tuple[int, ...]:
        """Encode pieces; neighbouring texts as one, since BPE may merge across their joint."""
        ids: list[int] = []
        run = ""
        for piece in pieces:
            if isinstance(piece, str):
                run += piece
            else:
                ids += [*self._plain(run), piece]
                run = ""
        return (*ids, *self._plain(run))

    def _plain(self, text: str) -> list[int]:
        """Encode text in which nothing is a special token."""
        return self._encode(text, split_special_tokens=True)

    def _encode(self, text: str, *, split_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(
            _utf8(text).decode(),
            add_special_tokens=False,
            split_special_tokens=split_special_tokens,
            truncation=False,
            verbose=False,  # a long trajectory is the caller's to judge, not worth a warning
        )
        return ids

    def _check_encoding(self) -> None:
        self._check_no_forgery()
        for text in _PROBE_TEXTS:
            back = self.decode(self.encode_completion(text))
            if back != text:
                raise ConfigError(
                    f"{self._name}: decoding must give back what was encoded, got {back!r} for "
                    f"{text!r}: use a byte-level tokenizer"
                )
        for text in ("word", "Two words.", "<tool_call>", '{"a": 1}'):
            self._check_joints(text)

    def _check_no_forgery(self) -> None:
        unknown = self._tokenizer.unk_token_id  # text of no token may well become this one
        for name, index in self._special.items():
            if index != unknown and index in self._plain(name):
                raise ConfigError(
                    f"{self._name}: text must not be able to forge a special token, but {name!r} "
                    "in a document is encoded as one: use the fast tokenizer"
                )

    def _check_joints(self, text: str) -> None:
        """Encoding in pieces must equal the tokenizer's encoding of the whole string."""
        first = [*self._opening("word", "word"), *self._prompt]
        after = [*self._after_turn, text, *self._prompt]
        names = {i: name for name, i in self._special.items()}
        pieces = [*first, text, self.end_id, *after]
        whole = "".join(piece if isinstance(piece, str) else names[piece] for piece in pieces)
        expected = tuple(self._encode(whole, split_special_tokens=False))
        got = (*self._ids(first), *self.encode_completion(text), *self._ids(after))
        if got != expected:
            raise ConfigError(
                f"{self._name}: tokens must not merge where the policy's text meets the "
                f"template's, but {whole!r} is encoded as {expected} and in pieces as {got}: set "
                "a chat_template with special tokens or line ends around the messages"
            )

    def _vocabulary_notes(self) -> Iterator[str]:
        added = self._tokenizer.added_tokens_decoder.values()
        tags = sorted(t.content for t in added if not t.special and t.content.startswith("<"))
        if tags:
            yield (
                f"{', '.join(tags)} are ordinary vocabulary of this tokenizer: a document that "
                "spells one gets its id, as the policy does. Special tokens are split."
            )

    def _hash(self, template: str) -> str:
        layout = self._layout
        parts = [
            template,
            [layout.opening, layout.bare_opening, layout.closed, layout.prompt],
            sorted(self._tokenizer.get_vocab().items()),
            sorted(self._special.items()),
            [self._plain(text) for text in _PROBE_TEXTS],  # merges are not in the vocabulary
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def load_renderer(
    model: str | Path, *, enable_thinking: bool = False, tool_responses: bool = False
) -> ChatRenderer:
    """Load the renderer of a model from its directory or its name on the Hugging Face hub.

    Raises:
        ConfigError: transformers is missing, there is no tokenizer, or ``ChatRenderer``
            refuses it.
    """
    try:
        from transformers import AutoTokenizer, GenerationConfig
    except ImportError as cause:
        raise ConfigError(
            "chat templates need transformers: pip install 'spaniel[train]'"
        ) from cause
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=False)
    except (OSError, ValueError) as cause:
        raise ConfigError(
            f"{model} must be a directory or model name with a tokenizer, and loading it failed: "
            f"{cause}"
        ) from cause
    try:
        eos = GenerationConfig.from_pretrained(str(model)).eos_token_id
    except OSError:  # not every model directory has a generation_config.json
        eos = None
    stop_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return ChatRenderer(
        tokenizer,
        enable_thinking=enable_thinking,
        tool_responses=tool_responses,
        stop_ids=stop_ids,
    )


def _first_messages(messages: Sequence[Message]) -> tuple[str | None, str]:
    """System text (None if there is none) and user text."""
    roles = [message.role for message in messages]
    if roles == ["system", "user"]:
        return messages[0].content, messages[1].content
    if roles == ["user"]:
        return None, messages[0].content
    raise ConfigError(f"the first prompt must have the roles [system, user] or [user], got {roles}")


def _utf8(text: str) -> bytes:
    """Bytes of text; lone surrogates, which broken JSON escapes leave, become ``?``."""
    return text.encode("utf-8", errors="replace")


def _is_tool_response(text: str) -> bool:
    return text.startswith("<tool_response>") and text.endswith("</tool_response>")
