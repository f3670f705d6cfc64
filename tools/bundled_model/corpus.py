"""The text: reading it, splitting it, and cutting it into windows of tokens."""

import math
import re
import subprocess
from pathlib import Path

import numpy as np

BOOKS = """Genesis;Exodus;Leviticus;Numbers;Deuteronomy;Joshua;Judges;Ruth;1 Samuel;2 Samuel;1 Kings;2 Kings;
1 Chronicles;2 Chronicles;Ezra;Nehemiah;Esther;Job;Psalm;Proverbs;Ecclesiastes;Song of Solomon;Isaiah;Jeremiah;
Lamentations;Ezekiel;Daniel;Hosea;Joel;Amos;Obadiah;Jonah;Micah;Nahum;Habakkuk;Zephaniah;Haggai;Zechariah;Malachi;
Matthew;Mark;Luke;John;Acts;Romans;1 Corinthians;2 Corinthians;Galatians;Ephesians;Philippians;Colossians;
1 Thessalonians;2 Thessalonians;1 Timothy;2 Timothy;Titus;Philemon;Hebrews;James;1 Peter;2 Peter;1 John;2 John;
3 John;Jude;Revelation""".replace("\n", "").split(";")

HELD_OUT_SHARE = 0.05
WINDOW = 512  # tokens a window holds, BOS included

UNK, BOS, EOS = 0, 1, 2


class Verse:
    def __init__(self, book, chapter, number, text):
        self.book, self.chapter, self.number, self.text = book, chapter, number, text


def read_verses(path=None):
    """All verses in order, from `bible -f gen1:1-rev22:21` or from a file with that output.

    Each line reads "Ge1:1 In the beginning ...". The books come in canonical order, so the abbreviations
    need not be understood: a new one is the next book.
    """
    if path:
        raw = Path(path).read_text(encoding="utf-8")
    else:
        raw = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
    verses, last, book = [], None, -1
    for line in raw.splitlines():
        match = re.match(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)", line)
        if not match:
            raise SystemExit(f"this is not a line of the text: {line!r}")
        abbreviation, chapter, number, text = match.groups()
        if abbreviation != last:
            last, book = abbreviation, book + 1
        verses.append(Verse(book, int(chapter), int(number), " ".join(text.split())))
    if book + 1 != len(BOOKS):
        raise SystemExit(f"expected {len(BOOKS)} books, found {book + 1}")
    return verses


def split(verses):
    """(train, held out): of every book the last 5 % of its verses, one at least, are held out."""
    train, held = [], []
    for book in range(len(BOOKS)):
        own = [v for v in verses if v.book == book]
        count = math.ceil(HELD_OUT_SHARE * len(own))
        train += own[:-count]
        held += own[-count:]
    return train, held


def heading(verse):
    return f"{BOOKS[verse.book]} {verse.chapter}"


def chapters(verses):
    """Runs of verses of one chapter."""
    runs = []
    for verse in verses:
        if not runs or (runs[-1][-1].book, runs[-1][-1].chapter) != (verse.book, verse.chapter):
            runs.append([])
        runs[-1].append(verse)
    return runs


def chapter_lines(run):
    """A chapter as lines of text: its heading if its beginning is there, then a verse a line."""
    lines = [v.text for v in run]
    return [heading(run[0])] + lines if run[0].number == 1 else lines


class TrainingStream:
    """The training text as one array of tokens, and windows of it that begin where a line begins.

    The tokenizer writes a space before the first word of a text but not before the first word of a later
    line. A window is a text of its own, so its first line is taken in the form that starts a text.
    """

    def __init__(self, tokenizer, verses):
        newline = tokenizer.token_to_id("<0x0A>")
        stream, self.line_end, self.start_form = [], [], []
        for run in chapters(verses):
            lines = chapter_lines(run)
            for i, line in enumerate(lines):
                as_start = tokenizer.encode(line, add_special_tokens=False).ids
                # "\n" + line gives [space, newline, line as a later line].
                as_later = tokenizer.encode("\n" + line, add_special_tokens=False).ids[2:]
                stream += [BOS] + as_start if i == 0 else [newline] + as_later
                self.start_form.append(np.array([BOS] + as_start, dtype=np.int64))
                self.line_end.append(len(stream))
            stream.append(EOS)
        self.tokens = np.array(stream, dtype=np.int64)
        self.line_end = np.array(self.line_end)

    def window(self, line, length):
        head = self.start_form[line]
        end = self.line_end[line]
        return np.concatenate([head, self.tokens[end : end + length - len(head)]])[:length]

    def epoch(self, rng, length):
        """One pass: the lines nearest after evenly spaced positions, the first position drawn, in random order."""
        positions = np.arange(rng.integers(length), len(self.tokens) - 2 * length, length)
        lines = np.searchsorted(self.line_end, positions) + 1
        return rng.permutation(lines)


def held_out_windows(tokenizer, verses):
    """Texts of whole lines of one chapter that take, with BOS, at most WINDOW tokens each."""
    windows = []
    for run in chapters(verses):
        lines = chapter_lines(run)
        numbers = [v.number for v in run]
        if len(lines) > len(numbers):
            numbers = [numbers[0]] + numbers  # the heading counts to the first verse
        first = 0
        while first < len(lines):
            last = first + 1
            while last < len(lines) and count(tokenizer, lines[first : last + 1]) <= WINDOW:
                last += 1
            windows.append({
                "source": f"{heading(run[0])}:{numbers[first]}-{numbers[last - 1]}",
                "text": "\n".join(lines[first:last]),
            })
            first = last
    return windows


def count(tokenizer, lines):
    return len(tokenizer.encode("\n".join(lines)).ids)
