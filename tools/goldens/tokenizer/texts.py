"""Texts to compare on. Each is (name, bytes); long ones are (name, unit, count)."""

import random
import unicodedata

from pipelines import CODE, WORLD

CONTRACTIONS = ("I'm I'M 'S 's 'ſ 'ſs it'ſ IT'S don't DON'T we're WE'RE they'Ve I'LL I'lL he'd HE'D 'tis '' 'x '\u00e9 "
                "'l 'ls 'LLs 'r 'rE 'v ''s '\u212a 'ŉ ’s ’S don’t")

NORMAL_FORMS = ("e\u0301 E\u0301 n\u0303 \u1e9b\u0323 q\u0307\u0323 q\u0323\u0307 \u212b \u2126 \u1100\u1161\u11a8 \uac00\u11a8 "
                "a\u0315\u0300\u05ae\u0300\u0062 \u0344 \u0958 \u2adc \ufb1d \U0001d15e \u0f73\u0f75 \uf900 \u09c7\u09be "
                "\u0301a '\u0301 1\u0301 \u2260 =\u0338 \ufb01 \uff21 a" + "\u0316\u0301" * 20 + "z")

DIGITS = "0123456789 ٠١٢٣ ०१२ ௧௨ ๑๒๓ ½ ⅷ Ⅻ ² ₃ ①② 𝟘𝟙 〇一二 ᛮ 1,234.56 12a34 1st 0x1F 1\u20e31"

EMOJI = "👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 👍🏽 ❤️ ☺ 🧑🏿‍🚀 #️⃣ 🙂🙂🙂\U0001fae8 ©®™"

SPACES = ("a b  c   d    e\tf\t\tg \t h\ni\n\nj\n\n\nk\r\nl\r\n\r\nm \n n  \n  \n o\u00a0p\u3000q\u2003\u2003r\u200bs\u2028t\u2029"
          "u\x0bv\x0cw\x85x\u1680y\u180ez\ufeff ")

CONTROLS = "\x00\x01\x02\x1b[0m\x7f\x80\x9f\xad\u200e\u202e\ufffc\ufffd\ufffe\U000e0001\U0010ffff"

SPECIAL = ("<|endoftext|> a<|im_start|>user\nhi<|im_end|>\n<s>x</s><s> <unk>y</s>  </s>\n<|im_start <|im_end|<|im_end|>> "
           "<think>\n\n</think>\n\n<|begin|><|end|> <｜User｜>x<｜end▁of▁sentence｜> <0x41><0x0A> ▁▁ x▁y <|mask|> <|end<|endoftext|>x")

TRICKY = ("a [left] b [right]  c  [both]\t d[left][right] [both] [both]  [left]\n\n[left]x   [right]\u3000y wordword word words "
          "sword word, (word) word_ wor word\u0301 \u0301word éword wordé mot motmot mot! 7mot mot- café cafe\u0301 CAFÉ naïve "
          "nai\u0308ve réel re\u0301el <|mask|>  <|mask|> x <|endtext|>x <|endoftext|>x    four     five\n\n\nthree\n\n\n\nfour  ")

BROKEN = (b"ok \xff\xfe a\xc3 b\xe2\x82 c\xf0\x9f\x98 d\xc0\xaf e\xed\xa0\x80 f\xf4\x90\x80\x80 g\xf8\x88\x80\x80\x80 "
          b"\x80\xbf \xe2\x82\xac\xe2\x82 \xf0\x9f\x98\x80\xf0\x9f \xe0\x80\x80 \xf1\x80\xe1\x80\xc2 tail \xf0\x9f\x98")

LONG = [
    ("128 KiB of one letter", "a", 131072), ("128 KiB of one capital", "Q", 131072), ("1 MiB of spaces", " ", 1 << 20),
    ("60,000 newlines", "\n", 60000), ("1 MiB of ^", "^", 1 << 20), ("a letter and a space", "a ", 20000),
    ("CRLF", "\r\n", 5000), ("tabs", "\t", 5000), ("one CJK character", "世", 20000), ("an emoji", "🙂", 5000),
    ("digits", "1234567890", 3000), ("apostrophes", "'", 5000), ("combining marks", "\u0316\u0301", 10000),
    ("a special token", "<|im_end|>", 500), ("broken bytes", b"\xf0\x9f", 3000),
]


def random_texts():
    generator = random.Random(20240229)
    pools = [
        [chr(c) for c in range(32, 127)],
        list("aeiou stn'SſTDM  \n\r\t.,-1é世"),
        [chr(c) for c in range(0x20, 0x3000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")],
        [chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")],
        [chr(c) for c in (*range(0x300, 0x370), *range(0x41, 0x5b), 0x1100, 0x1161, 0x11a8, 0x20)],
        list("<|>_imstarendofx/[] \n") + ["<|im_end|>", "</s>", "word", "[left]", "  "],
        list("the and of to in") + [" the", " and", " of", "▁", "\n"],
    ]
    for i in range(84):
        pool = pools[i % len(pools)]
        text = "".join(generator.choice(pool) for _ in range(generator.randrange(1, 90)))
        yield f"random {i}", text.encode()


def texts():
    yield "empty", b""
    for name, text in (("one space", " "), ("two spaces", "  "), ("one newline", "\n"), ("a word", "beginning"),
                       ("a leading space", " beginning"), ("a trailing space", "beginning "), ("NUL", "\x00"),
                       ("contractions", CONTRACTIONS), ("normal forms", NORMAL_FORMS), ("digits", DIGITS),
                       ("emoji", EMOJI), ("spaces", SPACES), ("controls", CONTROLS), ("special tokens", SPECIAL),
                       ("tricky", TRICKY), ("code", CODE), ("world", WORLD),
                       ("prose", "And God said, Let there be light: and there was light. It's 7 o'clock.\n")):
        yield name, text.encode()
    yield "broken UTF-8", BROKEN
    yield from random_texts()
