"""Tokenizers of models that are not on this machine: as many words, special tokens where they are.

Real counterpart: ``from_pretrained`` of ``AutoTokenizer`` and of each tokenizer's class. Files that
are here are read. Of a model whose config is known (``configs.py``) a byte-level BPE stands for the
tokenizer: 4,000 pieces learned from English (4.4 characters a token, as GPT-2's has of English),
special tokens of the model's family at the ids that its config says, the rest of the vocabulary
unused. Its chat template is ChatML.

Not modelled: how many tokens each family's own vocabulary makes of a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.rayapi.standins import configs, pipelines
from raysim.rayapi.standins.said import program_here, say
from raysim.rayapi.standins.text import english

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

PIECES = 4000
SAID = "{}: a tokenizer of as many words ({:,}) that makes a token of 4.4 characters of English"
_FILES = (
    "tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model", "merges.txt",
)  # fmt: skip
_BERT = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}  # fmt: skip
_ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
    "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip
_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_GPT2 = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_LLAMA3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
_QWEN = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_GEMMA = {
    "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
}  # fmt: skip
_CLIP = {
    "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
}  # fmt: skip
_WHISPER = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
FAMILIES: dict[str, tuple[dict[str, str], str]] = {
    **dict.fromkeys(("bert", "distilbert", "electra", "albert", "deberta-v2", "layoutlm"),
                    (_BERT, "[CLS] $A [SEP]")),
    **dict.fromkeys(("roberta", "xlm-roberta", "bart", "mbart", "camembert"),
                    (_ROBERTA, "<s> $A </s>")),
    **dict.fromkeys(("t5", "mt5", "umt5", "pegasus", "marian"), (_T5, "$A </s>")),
    **dict.fromkeys(("llama", "mistral", "mixtral", "open_llama"), (_LLAMA, "<s> $A")),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"), (_QWEN, "$A")),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), (_GEMMA, "<bos> $A")),
    "opt": ({**_ROBERTA, "bos_token": "</s>", "unk_token": "</s>"}, "</s> $A"),
    "bloom": ({**_LLAMA, "pad_token": "<pad>"}, "$A"),
    **dict.fromkeys(("clip", "clip_text_model"), (_CLIP, "<|startoftext|> $A <|endoftext|>")),
    "whisper": (_WHISPER, "$A <|endoftext|>"),
}  # fmt: skip
"""Special tokens, and what is put around a text; of others as of GPT-2."""
_AT = {
    "[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, "<s>": 0, "<pad>": 1,
    "</s>": 2, "<unk>": 3, "<|begin_of_text|>": 128_000, "<|end_of_text|>": 128_001,
}  # fmt: skip
"""Ids where the config does not say them."""
LONG_VOCABULARY = 100_000
"""From here on a Llama's is that of Llama 3."""
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ part.get('text', '') }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.tokenization_utils_base``."""
    r.set(module.PreTrainedTokenizerBase, "from_pretrained", _either)


def install_auto(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.models.auto.tokenization_auto``."""
    r.set(module.AutoTokenizer, "from_pretrained", _either)


def _either(real: Any) -> Any:
    def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        if part := kwargs.get("subfolder"):
            folder = Path(str(pipelines.stands_for(name))) / part
            if folder.exists():
                name, kwargs = folder, {**kwargs, "subfolder": ""}
        config = None if program_here() is None or has_files(name, _FILES) else described(name)
        if config is None:
            return real.__func__(cls, name, *args, **kwargs)
        return stand_in(name, config, kwargs)

    return classmethod(from_pretrained)


def has_files(name: Any, files: tuple[str, ...]) -> bool:
    """Whether one of them is on this machine: in a folder of that name, or in the hub's cache."""
    folder = Path(str(name))
    if folder.exists():
        return folder.is_file() or any((folder / file).exists() for file in files)
    return any(configs.is_cached(name, file) for file in files)


def described(name: Any) -> Any:
    """The config of a model without files of its tokenizer; None: it is not known either."""
    here = (Path(str(name)) / "config.json").is_file()
    if not here and configs.by_name(name) is None and not configs.is_cached(name, "config.json"):
        return None
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name)


def stand_in(name: Any, config: Any, said: dict[str, Any] | None = None) -> Any:
    """A fast tokenizer of a model with this config."""
    from transformers import PreTrainedTokenizerFast

    text = config.get_text_config()
    size = int(getattr(text, "vocab_size", 0) or PIECES)
    special, around = _family(config.model_type, size)
    at = dict(_ids(special, None if special is _LLAMA3 else text, size))
    allowed = {
        key: (said or {})[key]
        for key in ("model_max_length", "padding_side", "truncation_side", "add_prefix_space")
        if key in (said or {})
    }
    allowed.setdefault("model_max_length", _longest(text))
    say(SAID.format(pipelines.named(name), size))
    made = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(size, tuple(at.items()), around), name_or_path=str(name),
        clean_up_tokenization_spaces=False, **special, **allowed,
    )  # fmt: skip
    made.chat_template = CHAT
    if special is _BERT:
        made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        if config.model_type == "distilbert":
            made.model_input_names = ["input_ids", "attention_mask"]
    return made


def _longest(text: Any) -> int:
    found = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    after = 2 if text.model_type in ("roberta", "xlm-roberta") else 0  # the padding's positions
    return int(found) - after if found else 512


def _family(kind: str, size: int) -> tuple[dict[str, str], str]:
    if kind == "llama" and size > LONG_VOCABULARY:
        return _LLAMA3, "<|begin_of_text|> $A"
    return FAMILIES.get(kind, (_GPT2, "$A"))


def _ids(special: dict[str, str], text: Any, size: int) -> Iterator[tuple[str, int]]:
    """Where special tokens are: as the config says, else as the family has them."""
    taken: dict[str, int] = {}
    for role, token in special.items():
        if token in taken:
            continue
        said = getattr(text, f"{role}_id", None)
        at = said if isinstance(said, int) and 0 <= said < size else _AT.get(token, size - 1)
        while at >= size or at in taken.values():
            at = (at - 1) % size
        taken[token] = at
        yield token, at


@cache
def _learned() -> tuple[list[str], list[Any]]:
    """Pieces in the order of their ids, and merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    bytes_only: Any = pre_tokenizers.ByteLevel
    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer = bytes_only(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES, show_progress=False, initial_alphabet=bytes_only.alphabet()
    )  # type: ignore[call-arg, unused-ignore]
    made.train_from_iterator([english()], trainer)
    model = json.loads(made.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), model["merges"]


@cache
def _tokenizer(size: int, special: tuple[tuple[str, int], ...], around: str) -> Any:
    """With pieces in the ids that special tokens leave."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    pieces, merges = _learned()
    at = dict(special)
    left = max(size - len(at), 256)
    pieces = pieces[:left]
    known = set(pieces)
    merges = [tuple(m) for m in merges if "".join(m) in known]
    special_ids = set(at.values())
    free = (i for i in range(max(size, 256 + len(at))) if i not in special_ids)
    vocabulary = {piece: next(free) for piece in pieces}
    vocabulary |= {f"<unused{i}>": i for i in free}
    made: Any = Tokenizer(models.BPE(vocab={**vocabulary, **at}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in at])
    if around != "$A":
        pair = f"{around} {around.replace('$A', '$B')}"
        if around.startswith("[CLS]"):
            pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
        made.post_processor = processors.TemplateProcessing(
            single=around, pair=pair, special_tokens=list(at.items())
        )
    return made
