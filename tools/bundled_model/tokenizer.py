"""A tokenizer in the form Mixtral ships: BPE over text whose spaces are "▁", unknown characters as bytes."""

import json
import re

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers

from corpus import chapter_lines, chapters

VOCABULARY = 2048
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]

# Our own wording, in the style of the instruct versions of Mixtral. The model is not trained on it.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% set ns = namespace(system='') %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{% set ns.system = message['content'] + '\n\n' %}"
    "{% elif message['role'] == 'user' %}"
    "{{ '[INST] ' + ns.system + message['content'] + ' [/INST]' }}"
    "{% set ns.system = '' %}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token }}"
    "{% else %}"
    "{{ raise_exception('a role must be system, user or assistant') }}"
    "{% endif %}"
    "{% endfor %}"
)


def train_tokenizer(verses):
    # The trainer is given single words and single runs of punctuation, so no merge can cross from one into
    # the next: the finished tokenizer then needs no pre-tokenizer, as Mixtral's has none. The first word of
    # a line after the first has no space before it; newlines are never seen, so they stay byte tokens.
    def words():
        for run in chapters(verses):
            for line in chapter_lines(run):
                yield re.findall("▁?[A-Za-z]+|▁?[^A-Za-z▁]+", line.replace(" ", "▁"))

    learner = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(BYTES),
        min_frequency=2,
        show_progress=False,
    )
    learner.train_from_iterator(words(), trainer)
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]

    # The order of SentencePiece: specials, bytes, merged pieces by rank, then single characters.
    characters = sorted((t for t in learned["vocab"] if len(t) == 1), key=learned["vocab"].get)
    pieces = SPECIAL + BYTES + list(dict.fromkeys(a + b for a, b in merges)) + characters
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    assert len(vocabulary) == len(pieces) == VOCABULARY, (len(vocabulary), len(pieces))

    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
    ])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def check_round_trip(tokenizer, verses):
    texts = ["\n".join(chapter_lines(run)) for run in chapters(verses)]
    texts += ["Grüße, 世界 🙂\tend\n\n  two  spaces ", "0123456789 {}[]~^`\\", " leading"]
    for text in texts:
        ids = tokenizer.encode(text).ids
        assert ids[0] == 1 and 0 not in ids, text[:60]
        assert tokenizer.decode(ids) == text, (text[:80], tokenizer.decode(ids)[:80])


def tokenizer_config(max_length):
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(i): {
                "content": token, "lstrip": False, "normalized": False,
                "rstrip": False, "single_word": False, "special": True,
            }
            for i, token in enumerate(SPECIAL)
        },
        "additional_special_tokens": [],
        "bos_token": "<s>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "model_max_length": max_length,
        "pad_token": None,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
    }
