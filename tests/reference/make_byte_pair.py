#!/usr/bin/env python3
"""Makes byte_pair_*: two small byte-level vocabularies, and the ids that the `tokenizers` package (0.23.3) gives for hard
texts. Usage: make_byte_pair.py TEXT FOLDER, with any English text to learn the merges from (ours: tiny Shakespeare)."""
import copy
import json
import pathlib
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LLAMA_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                 r"|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "  ", "\n", "a", " a", "a ", "  a  ", "Hello, world!", "First Citizen:\nSpeak, speak.\n\nAll:\n\tSo  say we. ",
    "I'm, you're, he's, we'll, they've, she'd, can't", "I'M YOU'RE HE'S WE'LL 'twas 's 'S x'\u017fy ' s",
    "it\u2019s typographic", "''s '''ll", "1 12 123 1234 12345 3.14159 1,000,000 2nd 0x1F", "x1y22z333 \u0661\u0662\u0663 \u00bd \u2167 \u00b2",
    "tabs\tand\r\nlines\r\rand\n\n\nmore \n \n  x", "ends with spaces   ", "   begins with spaces", "line\u2028sep\u0085nel\u00a0nbsp\u3000wide",
    "a\u180eb \u200b c\u200d\ufeffd", "caf\u00e9 cafe\u0301 na\u00efve nai\u0308ve \u0301alone", "a\u0300\u0301\u0302\u0303b \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002\u4e2d\u6587\uff0c\ud55c\uad6d\uc5b4 \u3053\u3093\u306b\u3061\u306f", "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\U0001f3f3\ufe0f\u200d\U0001f308 a\U0001f600b",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u03ba\u03cc\u03c3\u03bc\u03b5! \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd", "\U0001d4d7\U0001d4ee\U00020000 \U0010fffd", "\x00\x01\x1f\x7f nul", "#!/bin/sh\nfor (i=0; i<10; ++i) { x[i] += 2; } // done",
    "http://a.b/c?d=e&f=%20", "!!! ... --- ?!?!  (((", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "thethethe THE tHe The",
    "ROMEO: But, soft! what light through yonder window breaks?", "_snake_case camelCase \u01c5 \u02b0", "don't<|endoftext|>stop <|begin_of_text|> x<|end_of_text|>",
]


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def trained(text, pre_tokenizer, size, specials):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def encoded(definition):
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


def main():
    text, folder = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"), pathlib.Path(sys.argv[2])
    gpt2 = trained(text, pre_tokenizers.ByteLevel(add_prefix_space=False), 600, ["<|endoftext|>"])
    gpt2.model.save(str(folder), "byte_pair_gpt2")  # -vocab.json and -merges.txt
    for end in ("vocab.json", "merges.txt"):
        (folder / f"byte_pair_gpt2-{end}").rename(folder / f"byte_pair_gpt2_{end}")

    llama = trained(text, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA_PATTERN), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 500, [])
    llama.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", 503)])])
    definition = json.loads(llama.to_str())
    definition["model"]["ignore_merges"] = True
    for word in ("camel", "Hello", "\u0120window"):  # that no merges make
        definition["model"]["vocab"].setdefault(word, len(definition["model"]["vocab"]))
    assert len(definition["model"]["vocab"]) == 503
    definition["added_tokens"] = [
        {"id": 503 + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i, content in enumerate(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])]
    write(folder / "byte_pair_llama_tokenizer.json", definition)

    base = json.loads(gpt2.to_str())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}
    variants = {"gpt2": byte_level, "gpt2 with a space before": {**byte_level, "add_prefix_space": True},
                "digits alone": digits,
                "digits together": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, byte_level]}}
    ids = {}
    for name, pre_tokenizer in variants.items():
        changed = copy.deepcopy(base)
        changed["pre_tokenizer"] = pre_tokenizer
        ids[name] = encoded(changed)
    ids["llama"] = encoded(definition)
    write(folder / "byte_pair_expected.json", {"texts": TEXTS, "pre_tokenizers": variants, "ids": ids})


main()
