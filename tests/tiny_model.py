"""A causal language model of a few thousand weights with its tokenizer and data, made on the spot without a network.

Usage: ``python -m tests.tiny_model DIRECTORY``
"""

import json
import os
import random
import sys
from pathlib import Path

_WORDS = ("the", "a", "robot", "arm", "leg", "wheel", "moves", "turns", "stops", "left", "right", "at", "door")
_SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]  # the first ids, in this order
_TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"


def make(directory: Path) -> None:
    """Write ``model/`` and a data set for each of TRL's ways: ``sft/``, ``dpo/``, ``grpo/``."""
    numbers = random.Random(0)
    texts = [" ".join(numbers.choices(_WORDS, k=numbers.randint(5, 12))) + "." for _ in range(256)]
    _write_model(directory / "model", texts)
    _write_data(directory / "sft", [{"text": text} for text in texts])
    _write_data(directory / "dpo", [{"prompt": t[:8], "chosen": t[8:], "rejected": t[:7:-1]} for t in texts[:64]])
    _write_data(directory / "grpo", [{"prompt": text[:12]} for text in texts[:32]])


def _write_data(directory: Path, rows: list[dict[str, str]]) -> None:
    directory.mkdir()
    (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_model(directory: Path, texts: list[str]) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=320, special_tokens=_SPECIAL, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=_SPECIAL.index("<pad>"),
        bos_token_id=_SPECIAL.index("<s>"), eos_token_id=_SPECIAL.index("</s>"),
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    make(Path(sys.argv[1]))
