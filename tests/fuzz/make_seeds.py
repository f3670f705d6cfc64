#!/usr/bin/env python3
"""Writes the hand-made inputs of the corpora: one file for each kind of bad input, and valid ones.

Usage: make_seeds.py   (writes into corpus/ beside this script; found inputs there stay)

Names tell the kind: aNN_ follows the list of hostile cases in README.md, ok_ is accepted.
"""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "data"
SEPARATOR = b"\n====\n"


def write(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    (folder / name).write_bytes(data)


# --- safetensors ------------------------------------------------------------------------------

def tensor(dtype="F32", shape=(2, 2), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def st_file(name, header, data=b"", length=None):
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header, separators=(",", ":"))
    header = header.encode() if isinstance(header, str) else header
    word = struct.pack("<Q", len(header) if length is None else length)
    write("safetensors", name, b"F" + word + header + data)


def st_header(name, header, data_bytes):
    if not isinstance(header, str):
        header = json.dumps(header, separators=(",", ":"))
    write("safetensors", name, f"H{data_bytes}\n{header}")


def safetensors():
    good = {"a": tensor(), "b": tensor("BF16", (4,), (16, 24))}
    st_file("ok_two", good, bytes(24))
    st_file("ok_padding", json.dumps(good) + "      ", bytes(24))
    st_header("ok_metadata", {"__metadata__": {"format": "pt"}, **good}, 24)
    st_header("ok_empty", "{}", 0)
    st_header("ok_scalar", {"s": tensor("F64", (), (0, 8))}, 8)
    st_header("ok_zero_size", {"s": tensor("I8", (0, 5), (0, 0)), "t": tensor()}, 16)
    st_header("ok_bits", {"f4": tensor("F4", (2, 4), (0, 4)), "f6": tensor("F6_E2M3", (4,), (4, 7))}, 7)
    st_header("ok_escaped_name", '{"a\\u00e9\\ud83d\\ude00\\n":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1)
    st_header("ok_order", {"z": tensor("U8", (1,), (1, 2)), "a": tensor("U8", (1,), (0, 1))}, 2)
    st_header("ok_huge", {"a": tensor("U8", (2**62,), (0, 2**62))}, 2**62)
    every = "F32 BF16 F16 F64 I64 I32 I16 I8 U64 U32 U16 U8 BOOL C64 F8_E4M3 F8_E5M2 F8_E8M0"
    st_header("ok_dtypes", {t: tensor(t, (0,), (0, 0)) for t in every.split()}, 0)
    for n in (2**64 - 1, 2**63, 0, 1, 7, 100_000_001, 1000):
        st_file(f"a01_header_length_{n}", good, bytes(24), length=n)
    whole = len(json.dumps(good, separators=(",", ":"))) + 24
    st_file("a01_header_length_file_minus_8_plus_1", good, bytes(24), length=whole + 1)
    st_file("a01_header_length_file_minus_8", good, bytes(24), length=whole)
    write("safetensors", "a01_seven_bytes", b"F" + bytes(7))
    write("safetensors", "a01_no_bytes", b"F")
    st_header("a02_shape_overflow", {"a": tensor("F32", (4194305, 4194305, 211106198978564), (0, 16))}, 16)
    st_header("a02_shape_overflow_bits", {"a": tensor("F32", (2**60,), (0, 16))}, 16)
    st_header("a02_shape_2_63", {"a": tensor("U8", (2**63,), (0, 16))}, 16)
    st_header("a02_shape_zero_hides_overflow", {"a": tensor("U8", (2**62, 2**62, 0), (0, 0))}, 0)
    st_header("a02_rank_9", {"a": tensor("U8", (1,) * 9, (0, 1))}, 1)
    offsets = {"begin_behind_end": "[16,0]", "negative": "[-1,16]", "exponent": "[0,1.6e1]",
               "big_exponent": "[0,1e3]", "string": '["0","16"]', "2_63": f"[0,{2**63}]",
               "2_64": f"[0,{2**64}]", "three": "[0,16,16]", "one": "[0]", "none": "[]",
               "null": "null", "leading_zero": "[00,16]", "minus_zero": "[-0,16]", "fraction": "[0,16.0]",
               "plus": "[+0,16]", "comma": "[0,16,]", "nested": "[[0,16]]"}
    for kind, text in offsets.items():
        st_header(f"a03_offsets_{kind}", '{"a":{"dtype":"F32","shape":[2,2],"data_offsets":%s}}' % text, 16)
    st_header("a04_overlap", {"a": tensor(), "b": tensor(offsets=(8, 24))}, 24)
    st_header("a04_same_bytes", {"a": tensor(), "b": tensor()}, 16)
    st_header("a04_hole", {"a": tensor(), "b": tensor(offsets=(20, 36))}, 36)
    st_header("a04_hole_at_start", {"a": tensor(offsets=(4, 20))}, 20)
    st_header("a04_bytes_behind", {"a": tensor()}, 17)
    st_header("a04_no_tensor_but_bytes", "{}", 1)
    st_header("a04_past_the_end", {"a": tensor()}, 15)
    st_header("a04_too_few_bytes", {"a": tensor("F32", (3,), (0, 16))}, 16)
    same = '"a":{"dtype":"%s","shape":[%d],"data_offsets":[0,16]}'
    st_header("a05_name_twice", "{" + same % ("F32", 4) + "," + same % ("BF16", 8) + "}", 16)
    st_header("a05_name_twice_escaped", "{" + same % ("F32", 4) + "," + (same % ("BF16", 8)).replace('"a"', '"\\u0061"') + "}", 16)
    st_header("a05_field_twice", '{"a":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}}', 16)
    st_header("a05_metadata_twice", '{"__metadata__":{},"__metadata__":{}}', 0)
    st_header("a05_metadata_escaped", '{"\\u005f_metadata__":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1)
    st_header("a06_metadata_nested", '{"__metadata__":' + '{"a":' * 1000 + "1" + "}" * 1001, 0)
    st_header("a06_metadata_array", '{"__metadata__":{"a":' + "[" * 1000, 0)
    st_header("a06_metadata_number", '{"__metadata__":{"a":' + "9" * 3000 + "}}", 0)
    st_header("a06_long_offset", '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,%s]}}' % ("1" * 3000), 1)
    st_header("a06_long_name", {"n" * 3000: tensor()}, 16)
    for kind, text in {"control": '"a\tb"', "escape": '"a\\x"', "nul": '"a\\u0000"', "high_surrogate": '"\\ud800"',
                       "low_surrogate": '"\\udc00x"', "pair_broken": '"\\ud800\\u0041"', "open": '"a',
                       "half_escape": '"\\', "empty": '""', "number": "1", "null": "null"}.items():
        st_header(f"text_{kind}", "{" + text + ':{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1)
    st_file("text_invalid_utf8", b'{"\xff":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0")
    for kind, text in {"array": "[]", "space_first": " {}", "bom": "\ufeff{}", "trailing": "{} x", "two": "{}{}",
                       "comma": '{"__metadata__":{},}', "colon": '{"a" {}}', "nul_padding": "{}\0\0",
                       "unknown_field": '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}',
                       "unknown_dtype": '{"a":{"dtype":"U128","shape":[1],"data_offsets":[0,16]}}',
                       "no_dtype": '{"a":{"shape":[1],"data_offsets":[0,1]}}',
                       "no_shape": '{"a":{"dtype":"U8","data_offsets":[0,1]}}',
                       "no_offsets": '{"a":{"dtype":"U8","shape":[1]}}',
                       "shape_negative": '{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}',
                       "shape_comma": '{"a":{"dtype":"U8","shape":[1,],"data_offsets":[0,1]}}',
                       "shape_text": '{"a":{"dtype":"U8","shape":"1","data_offsets":[0,1]}}',
                       "odd_bits": '{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}'}.items():
        st_header(f"form_{kind}", text, 1 if '"a":{' in text else 0)
    for cut in (9, 20, 60, 100, 130):
        write("safetensors", f"a09_cut_at_{cut}", (HERE / "corpus/safetensors/ok_two").read_bytes()[:cut])


# --- config and index -------------------------------------------------------------------------

def config():
    models = sorted(p.parent.name for p in (DATA / "models").glob("*/config.json"))
    for name in models:
        write("config", f"ok_{name}", (DATA / "models" / name / "config.json").read_bytes())
    good = json.loads((DATA / "models/mixtral/config.json").read_text())
    qwen = json.loads((DATA / "models/qwen2moe/config.json").read_text())

    def bad(name, base=good, **changes):
        write("config", name, json.dumps({**base, **changes}, indent=1))

    write("config", "ok_generation", json.dumps(good).encode() + SEPARATOR + b'{"eos_token_id":[2,7],"bos_token_id":1}')
    write("config", "generation_eos_wrong", json.dumps(good).encode() + SEPARATOR + b'{"eos_token_id":[-1,1e99,"x"]}')
    write("config", "generation_eos_many", json.dumps(good).encode() + SEPARATOR + json.dumps({"eos_token_id": list(range(100))}).encode())
    bad("a12_experts_0", num_local_experts=0)
    bad("a12_topk_above_experts", num_experts_per_tok=9)
    bad("a12_topk_0", num_experts_per_tok=0)
    bad("a12_layers_1e9", num_hidden_layers=10**9)
    bad("a12_layers_0", num_hidden_layers=0)
    bad("a12_heads_not_divisible", num_attention_heads=4, num_key_value_heads=3)
    bad("a12_hidden_not_divisible", hidden_size=65)
    bad("a12_hidden_2_63", hidden_size=2**63)
    bad("a12_hidden_2_62", hidden_size=2**62)
    bad("a12_sizes_product_overflow", hidden_size=2**31, intermediate_size=2**31, num_local_experts=2**20, head_dim=2**20)
    bad("a12_head_dim_odd", head_dim=15)
    bad("a12_vocab_0", vocab_size=0)
    bad("a12_vocab_negative", vocab_size=-1)
    bad("a12_real_size", hidden_size=64.5)
    bad("a12_theta_0", rope_theta=0)
    bad("a12_epsilon_1e999", rms_norm_eps="X")
    write("config", "a12_theta_1e999", json.dumps({**good, "rope_theta": 0}).replace('"rope_theta": 0', '"rope_theta": 1e999'))
    bad("a12_unknown_act", hidden_act="gelu")
    bad("a12_unknown_architecture", architectures=["LlamaForCausalLM"])
    bad("a12_no_architecture", architectures=[])
    bad("a12_quantized", quantization_config={"quant_method": "gptq"})
    bad("a12_rope_unknown", rope_scaling={"type": "dynamic", "factor": 2})
    bad("rope_yarn", rope_scaling={"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128})
    bad("rope_yarn_extreme", rope_scaling={"rope_type": "yarn", "factor": 1e300, "beta_fast": 0, "beta_slow": 1e300, "mscale": -1e300, "mscale_all_dim": 1e300, "original_max_position_embeddings": 1})
    bad("rope_linear", rope_scaling={"type": "linear", "factor": 2})
    bad("rope_llama3", rope_scaling={"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 128})
    bad("rope_llama3_equal", rope_scaling={"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4, "original_max_position_embeddings": 128})
    bad("qwen_sparse_step", qwen, decoder_sparse_step=2, num_hidden_layers=4)
    bad("qwen_sparse_step_0", qwen, decoder_sparse_step=0)
    bad("qwen_mlp_only", qwen, mlp_only_layers=[0, 0, 10**9, -1])
    bad("qwen_sliding", qwen, use_sliding_window=True, sliding_window=16, max_window_layers=1)
    bad("qwen_layer_types", qwen, layer_types=["full_attention", "sliding_attention"])
    bad("qwen_layer_types_short", qwen, layer_types=["full_attention"])
    write("config", "json_nested", '{"a":' + "[" * 3000)
    write("config", "json_twice", '{"hidden_size":1,"hidden_size":2}')


def index():
    def one(name, weight_map, **more):
        write("index", name, json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map, **more}))

    write("index", "ok_sharded", json.dumps({"weight_map": {f"t{i}": f"m-{i % 3}.safetensors" for i in range(20)}}))
    one("ok_one", {"a": "a.safetensors", "b": "a.safetensors"})
    one("ok_link", {"a": "link"})
    one("a07_dots", {"a": "../../x"})
    one("a07_sibling", {"a": "../x.safetensors"})
    one("a07_absolute", {"a": "/etc/passwd"})
    one("a07_link_out", {"a": "out"})
    one("a07_link_up", {"a": "up"})
    one("a07_folder", {"a": "sub"})
    one("a07_through_folder", {"a": "sub/../a.safetensors"})
    for kind, name in {"empty": "", "dot": ".", "dotdot": "..", "slash": "a.safetensors/", "long": "x" * 3000,
                       "nul": "a.safetensors\0x", "backslash": "..\\x", "control": "a\x1b[2Jb"}.items():
        one(f"a07_name_{kind}", {"a": name})
    one("a08_missing_shard", {"a": "missing.safetensors"})
    one("a08_number", {"a": 1})
    one("a08_null", {"a": None})
    one("a08_list", {"a": ["a.safetensors"]})
    one("a08_empty_map", {})
    one("a08_map_is_list", ["a"])
    one("a08_many_shards", {str(i): f"{i}" for i in range(1001)})
    write("index", "a08_no_map", "{}")
    write("index", "a08_tensor_twice", '{"weight_map":{"a":"a.safetensors","a":"link"}}')
    write("index", "json_nested", '{"weight_map":' + '{"a":' * 3000)
    write("index", "json_cut", '{"weight_map":{"a":"a.sa')


# --- tokenizers ---------------------------------------------------------------------------------

def byte_alphabet():
    kept = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [b for b in range(256) if b not in kept]
    return {**{b: chr(b) for b in kept}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def special(token_id, content, **more):
    return {"id": token_id, "content": content, "special": True, "normalized": False, **more}


def bpe(vocab, merges, **more):
    return {"type": "BPE", "vocab": vocab, "merges": merges, **more}


def tokenizer_json(model, **more):
    return {"added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": None, "model": model, **more}


def tokenizer():
    letters = {c: i for i, c in enumerate("abcdĠ")}
    small = bpe({**letters, "ab": 5, "abc": 6, "Ġa": 7, "<s>": 8}, [["a", "b"], ["ab", "c"], ["Ġ", "a"]])
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    spell = bpe({"<unk>": 0, "<s>": 1, **{f"<0x{b:02X}>": b + 2 for b in range(256)}, "▁": 258, "a": 259, "b": 260, "▁a": 261},
                ["▁ a"], byte_fallback=True, fuse_unk=True, unk_token="<unk>")

    def one(name, value, text="abc a", config=None):
        data = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        data += SEPARATOR + (text if isinstance(text, bytes) else text.encode())
        write("tokenizer", name, data if config is None else data + SEPARATOR + config.encode())

    good = tokenizer_json(small, pre_tokenizer=level, decoder=level, added_tokens=[special(8, "<s>")])
    one("ok_byte_level", good)
    one("ok_special", good, "<s>a<s>")
    one("ok_config", good, "a", '{"bos_token":"<s>","eos_token":{"content":"<s>"},"add_bos_token":true,"chat_template":"x"}')
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    spelled = tokenizer_json(spell, added_tokens=[special(0, "<unk>"), special(1, "<s>")], post_processor=template,
                             normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
                             decoder={"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})
    one("ok_byte_fallback", spelled, "a b\u00e9 \U0001F600")
    one("ok_metaspace", tokenizer_json(bpe({"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}, [["▁", "a"]], unk_token="<unk>"), pre_tokenizer=meta, decoder=meta), "a  a")
    one("ok_digits_split", {**good, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}|[a-c]+(?!x)"}, "behavior": "Isolated", "invert": False}, {**level, "use_regex": False}]}}, "a12 b345")
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            one(f"split_{behavior}_{invert}", {**good, "pre_tokenizer": {"type": "Split", "pattern": {"String": "b"}, "behavior": behavior, "invert": invert}}, "abba")
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        one(f"norm_{form}", {**good, "normalizer": {"type": form}}, "e\u0301 \ufb01 \uac00 \u1100\u1161" + "\u0300" * 50)
    one("norm_grows", {**good, "normalizer": {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}] * 5}}, "a" * 20)
    one("norm_empties", {**good, "normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": ""}}, "aaa")
    one("added_strip", {**good, "added_tokens": [special(8, "<s>", lstrip=True, rstrip=True), {"id": 9, "content": " ", "special": False, "normalized": True, "single_word": True}]}, "a  <s>  a  ")
    one("decoder_steps", {**good, "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "a"}, "content": "\u00e9"}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": "x", "start": 3, "stop": 2}]}})
    one("decoder_strip_huge", {**good, "decoder": {"type": "Strip", "content": "a", "start": 2**62, "stop": 2**62}}, "aaa")

    def model(name, vocab, merges, **more):
        one(name, tokenizer_json(bpe(vocab, merges, **more), pre_tokenizer=level, decoder=level))

    model("a13_merge_longer_than_tokens", {**letters, "ab": 5}, [["a", "b"], ["ab", "ab"]])
    model("a13_merge_unknown", letters, [["a", "zz"]])
    model("a13_merge_result_unknown", letters, [["a", "b"]])
    model("a13_merge_three", letters, ["a b c"])
    model("a13_merge_empty", letters, [["", "a"]])
    model("a13_merge_space", letters, [" "])
    model("a13_merge_number", letters, [1])
    model("a13_merges_object", letters, {})
    model("a13_id_2_31", {**letters, "x": 2**31}, [])
    model("a13_id_2_63", {**letters, "x": 2**63 - 1}, [])
    model("a13_id_negative", {**letters, "x": -1}, [])
    model("a13_id_real", {**letters, "x": 1.5}, [])
    model("a13_id_hole", {**letters, "x": 262000}, [])
    model("a13_same_id", {"a": 0, "b": 0}, [])
    model("a13_empty_vocab", {}, [])
    model("a13_empty_token", {"": 0, "a": 1}, [["", "a"]])
    model("a13_nul_token", {"\0": 0, "a\0": 1, "a": 2}, [])
    model("a13_long_token", {"a" * 3000: 0, "a": 1}, [])
    model("a13_unk_missing", letters, [], unk_token="<unk>")
    model("a13_dropout", letters, [], dropout=0.5)
    model("a13_suffix", letters, [], end_of_word_suffix="</w>")
    one("a13_added_other_id", {**good, "added_tokens": [special(1, "<s>")]})
    one("a13_added_twice", {**good, "added_tokens": [special(8, "<s>"), special(8, "<s>")]})
    one("a13_added_empty", {**good, "added_tokens": [special(9, "")]})
    one("a13_added_2_31", {**good, "added_tokens": [special(2**31, "<x>")]})
    one("a13_added_number", {**good, "added_tokens": [1, None]})
    one("a13_not_bpe", {**good, "model": {**small, "type": "Unigram"}})
    one("a13_frame_unknown", {**good, "post_processor": template})
    one("a13_json_nested", b'{"model":' + b"[" * 3000)
    one("a13_json_cut", json.dumps(good).encode()[:100])
    regexes = {"aplusplus": "(a+)+$", "nested_star": "(a*)*b", "alternation": "(a|aa)+$", "backreference": "(a)\\1+",
               "recursion": "(a(?R)?b)", "callout": "(?C1)a", "verb": "(*COMMIT)a", "limit": "(*LIMIT_MATCH=4294967295)(a+)+$",
               "lookbehind": "(?<=a)b", "possessive": "a++b", "empty": "", "empty_match": "a*", "huge_count": "(a{1000}){1000}",
               "class_open": "[a", "group_open": "(" * 1000, "nul": "a\0b", "utf_off": "(*NO_UTF_CHECK)\\C", "single_unit": "\\C",
               "reset": "a\\Kb", "lookahead": "(?=a)", "inline": "(?i:'s|'t)|\\s+(?!\\S)", "named": "(?<n>a)(?&n)", "quote": "\\Q(a+)+"}
    for kind, pattern in regexes.items():
        one(f"a14_regex_{kind}", {**good, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}}, "a" * 2000 + "b")
    one("a14_regex_lone_surrogate", json.dumps({**good, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\ud800"}, "behavior": "Isolated"}}).encode())


def text():
    texts = {"ascii": "Hello, world! It's 12345 o'clock.", "spaces": " " * 2000, "newlines": "\n" * 2000, "caret": "^" * 2000,
             "letter": "a" * 3000, "mixed_space": "a \n\t\r\n  b\u3000\u00a0\u2028c", "nfd": "e\u0301o\u0308" * 50, "marks": "a" + "\u0301" * 500,
             "hangul": "\u1112\u1161\u11ab\ud55c\uae00", "emoji": "\U0001F468\u200d\U0001F469\u200d\U0001F467", "cjk": "\u4f60\u597d\u3053\u3093",
             "special": "<s></s><unk><|endoftext|><|im_start|>user<|im_end|><think>x</think>", "half_special": "<|im_<|endoftext|",
             "tricky": "a [left]  [right]  word mot caf\u00e9 cafe\u0301 <|endtext|>x  <|mask|>\n\n\n", "lower": "\u2581a\u2581 b", "bytes": "<0x41><0xFF>",
             "digits": "1234567890" * 20, "nul": "a\0b", "bom": "\ufeffa", "edges": "\ud7ff\ue000\U0010ffff\u0080\u0800\U00010000", "contractions": "'s 'T 'RE 'll 'x it\u2019s",
             "combining_first": "\u0301\u0327", "singleton": "\u212b\u2126\uf900"}
    for kind, value in texts.items():
        name = ("a15_" if kind in ("letter", "spaces", "newlines", "caret") else "ok_") + kind
        write("text", name, b"\x80" + value.encode("utf-8", "surrogatepass"))
    write("text", "ok_options", b"\x83" + texts["special"].encode())
    broken = {"continuation": b"a\x80b", "lone_ff": b"\xff\xfe", "overlong": b"\xc0\xaf\xe0\x80\xaf\xf0\x80\x80\xaf", "surrogate": b"\xed\xa0\x80\xed\xbf\xbf",
              "too_large": b"\xf4\x91\x92\x93\xff", "truncated": b"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "cut_4": b"ab\xf0\x9f\x98", "cut_3": b"ab\xe4\xbd", "cut_2": b"ab\xc3"}
    for kind, value in broken.items():
        write("text", f"a16_broken_{kind}", b"\x81" + value)


# --- batch files --------------------------------------------------------------------------------

def batch():
    def row(i="1", url="/v1/completions", **body):
        return json.dumps({"custom_id": i, "method": "POST", "url": url, "body": {"model": "m", "prompt": "a", **body}})

    def chat(**body):
        return json.dumps({"custom_id": "c", "method": "POST", "url": "/v1/chat/completions",
                           "body": {"messages": [{"role": "user", "content": "hi"}], **body}})

    write("batch", "ok_rows", row("1") + "\n" + row("2", max_tokens=3) + "\n" + chat() + "\n")
    write("batch", "ok_all_fields", row(n=2, max_tokens=5, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, seed=1, stop=["a", "b"], stop_token_ids=[1, 2], ignore_eos=True, logprobs=3, prompt_logprobs=2, echo=True, skip_special_tokens=False, include_stop_str_in_output=True, return_token_ids=True, add_special_tokens=False, stream=False, user="u"))
    write("batch", "ok_prompts", row(prompt=["a", "b"]) + "\n" + row("2", prompt=[1, 2]) + "\n" + row("3", prompt=[[1], [2, 3]]))
    write("batch", "ok_chat", chat(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant", "content": None, "name": "n"}], logprobs=True, top_logprobs=5, max_completion_tokens=9, chat_template_kwargs={"enable_thinking": False}))
    write("batch", "a16_no_newline_at_end", row())
    write("batch", "a16_crlf", row("1") + "\r\n" + row("2") + "\r\n\r\n")
    write("batch", "a16_bom", "\ufeff" + row() + "\n")
    write("batch", "a16_nul", row().encode() + b"\n\0\n{\0}\n")
    write("batch", "a16_nul_escape", row("a\0b", prompt="x\0y", stop="\0"))
    write("batch", "a16_invalid_utf8", row("1").replace('"a"', '"\udcff"').encode("utf-8", "surrogateescape") + b"\n")
    write("batch", "a16_lone_surrogate", row().replace('"a"', '"\\ud800"'))
    write("batch", "a16_line_long", row(prompt="x" * 3000) + "\n" + row("2"))
    write("batch", "a16_line_of_511", "x" * 511 + "\n" + "y" * 512 + "\n" + "z" * 513 + "\n" + "w" * 514)
    write("batch", "a16_line_of_512_crlf", "y" * 512 + "\r\n" + "z" * 513 + "\r\n" + "w" * 512 + "\r")
    write("batch", "a16_blank_lines", "\n\n \t\r\n" + row() + "\n\n")
    write("batch", "a16_empty", "")
    write("batch", "a16_cut", row()[:60] + "\n" + row()[:20])
    write("batch", "a16_nested", '{"custom_id":"1","body":' + "[" * 3000 + "\n" + "{\"a\":" * 1000)
    write("batch", "a16_array", "[1]\n1\n\"x\"\nnull\n")
    write("batch", "a17_id_twice", row("1") + "\n" + row("1"))
    write("batch", "a17_id_twice_escaped", row("a") + "\n" + row("a").replace('"a"', '"\\u0061"', 1))
    write("batch", "a17_id_key_twice", row("a")[:-1] + ',"custom_id":"b"}')
    write("batch", "a17_id_key_escaped", row("a").replace("custom_id", "custom\\u005fid"))
    write("batch", "a17_id_empty", row(""))
    write("batch", "a17_id_number", row(1) + "\n" + row(None) + "\n" + row(["x"]))
    write("batch", "a17_id_513", row("x" * 513) + "\n" + row("x" * 512))
    write("batch", "a17_id_3000", row("x" * 3000))
    write("batch", "a17_id_inside_body", '{"body":{"custom_id":"x"},"custom_id":"y","method":"POST","url":"/v1/completions"}')
    values = ["-1", "0", "2147483648", "1e309", "1e9", "1e300", "-0", "0.5", "true", "null", '"1"', "[]", "{}", "9" * 400, "9223372036854775807", "NaN", "1000000"]
    fields = ["max_tokens", "n", "temperature", "top_p", "top_k", "min_p", "seed", "logprobs", "prompt_logprobs", "stop", "stop_token_ids", "prompt", "echo", "ignore_eos"]
    for field in fields:
        rows = [row(f"{i}").replace('"prompt": "a"', ('"prompt": "a", ' if field != "prompt" else "") + f'"{field}": {v}') for i, v in enumerate(values)]
        write("batch", f"a18_{field}", "\n".join(rows))
    for field in ("messages", "top_logprobs", "logprobs", "max_completion_tokens", "tools", "response_format", "chat_template", "chat_template_kwargs"):
        write("batch", f"a18_chat_{field}", "\n".join(chat(**{field: v}) for v in (-1, 10**6, [], {}, "x", None, [1], [{"role": 1}], [{"content": "x"}])))
    write("batch", "a18_prompt_ids", "\n".join(row(str(i), prompt=v) for i, v in enumerate(([-1], [2**31], [1.5], [[]], [], [[1], "a"], ["a", 1], [None], [[2**63 - 1]]))))
    write("batch", "a18_many_prompts", row(prompt=["a"] * 300, n=128))
    write("batch", "a18_many_stops", row(stop=["x"] * 200) + "\n" + row("2", stop_token_ids=list(range(200))))
    write("batch", "a19_no_prompt", row(prompt=None) + "\n" + row("2", prompt=""))
    for kind, value in {"get": '"GET"', "url": '"/v1/embeddings"', "none": "null", "number": "1"}.items():
        write("batch", f"envelope_{kind}", row().replace('"POST"', value).replace('"/v1/completions"', value if kind == "url" else '"/v1/completions"'))


# --- past ---------------------------------------------------------------------------------------

PAST_ID = '{"id":"batch_req_'


def past():
    def line(digit="1", custom_id='"a"', wrong=False):
        name = digit * 32
        if wrong:
            return f'{PAST_ID}{name}","custom_id":{custom_id},"response":null,"error":{{"message":"m","code":"c"}}}}\n'
        body = '{"choices":[{"text":"x"}]}'
        return f'{PAST_ID}{name}","custom_id":{custom_id},"response":{{"status_code":200,"request_id":"req_{name}","body":{body}}},"error":null}}\n'

    write("past", "ok_two", line() + line("a", '"\u00e9"'))
    write("past", "ok_failed", line("2", "null", wrong=True))
    write("past", "ok_none", "")
    whole = line("3") + line("4")
    for cut in (1, 17, 49, 80, len(line("3")) - 1, len(line("3")), len(whole) - 1):
        write("past", f"a33_cut_{cut}", whole[:cut])
    write("past", "a33_twice", line() + line())
    write("past", "a33_upper_case", line("A"))
    write("past", "a33_two_in_one", line("5").rstrip("\n") + line("6"))
    write("past", "a33_cut_then_next", line("5")[:60] + line("6"))
    write("past", "a33_zeros", line().encode() + bytes(40))
    write("past", "a33_nul_within", line().replace('"x"', '"\0"'))
    write("past", "a33_other_json", line() + '{"a":1}\n')
    write("past", "a33_blank_line", line() + "\n" + line("2"))


# --- backup -----------------------------------------------------------------------------------

def backup():
    """Two experts of 32 x 16 in one layer; the target puts checksums right."""
    page, content = 4096, 3 * (16 * 16 // 2 + 16 * 2)

    def fields(**changes):
        value = dict(magic=b"PHASORQ4", version=1, complete=1, low=1, high=2, scheme=0, flags=0, group=16, hidden=16, width=32, experts=2,
                     layers=1, moe=1, granules=4, content=content, data=page, file=page + 4 * page, index=0)
        value.update(changes)
        return struct.pack("<8sIIQQIIQQQQQQQQQQQ", *value.values())

    def seed(name, rest=bytes(4 * page), options=1, **changes):
        write("backup", name, bytes([options]) + fields(**changes) + rest)

    def index(*lengths):
        at, entries = 2 * page, b""
        for length in lengths:
            entries += struct.pack("<QQ", at, length)
            at += (length + 80 + page - 1) // page * page
        return entries.ljust(page, b"\0"), at

    seed("ok_zeros")
    seed("ok_not_sealed", options=0)
    seed("ok_asymmetric", flags=1, content=content + 96)
    entries, end = index(20, 30, 40, 50)
    frame = bytes.fromhex("28b52ffd2000010000")  # an empty zstd frame
    seed("ok_zstd", entries + frame.ljust(page, b"\0") * 4, flags=2, data=2 * page, file=end)
    entries, end = index(4096, 1, 17, 18)
    seed("ok_zstd_two_pages", entries + bytes(end - 2 * page), flags=2, data=2 * page, file=end)
    for field in ("group", "hidden", "width", "experts", "layers", "moe", "granules", "content", "data", "file"):
        for value in (0, 1, 2**24, 2**32, 2**63, 2**64 - 16):
            seed(f"a12_{field}_{value}", bytes(64), **{field: value})
    seed("a09_cut", bytes(4 * page - 1))
    seed("a04_longer", bytes(4 * page + 1))
    entries, end = index(20, 2**40, 40, 50)
    seed("a04_index_beyond", entries + bytes(4 * page), flags=2, data=2 * page, file=6 * page)
    seed("a12_many", bytes(page), hidden=16, width=128, experts=4096, layers=1024, moe=1024, granules=4096 * 1024 * 8, flags=2,
         data=page + 2**25 * 16, file=2 * page)


# --- recording and box ------------------------------------------------------------------------

def recording():
    """Two ranks; the target puts length and checksum right."""
    def fill(data):
        return data + bytes(-len(data) % 8)

    def node(kind=0, duration=1000, size=100, need=(0, 0), call=0, work=1, to_host=0):
        return struct.pack("<QQQIIIiBBBBHBBiiiiiI", duration, size, 7, 0, *need, -1, kind, work, 1, 0, 1, to_host, 0, 1, 2, 3, 0, 0, call)

    def call(member, group=0, number=1, op=0, first=0):
        return struct.pack("<IIBBBBI", group, number, op, member, 0, 0, first)

    lanes = [(0, 0, 0, 0, 3), (0, 1, 0, 3, 2), (3, 0, 0, 5, 1), (2, -1, 0, 6, 1)]
    nodes = [node(), node(1, 10, 0), node(1, 10, 0, call=1), node(), node(1, 10, 0, need=(0, 1), call=2), node(3, need=(1, 1)),
             node(4, 0, 0, need=(2, 1))]
    calls = [call(0), call(0, 1), call(1)]
    groups = [struct.pack("<i64B", 2, 0, 1, *[0] * 62), struct.pack("<i64B", 1, 0, *[0] * 63)]

    def seed(name, options=0, cut=0, about=b"{}", texts=b"thing\0stage\0tag\0", lanes=lanes, nodes=nodes, needs=(0, 0, 5),
             calls=calls, groups=groups, counts=(5, 6), names=(1, 1, 1), ranks=2, wall=1.5, version=1, **lengths):
        numbers = dict(lane=len(lanes), node=len(nodes), need=len(needs), call=len(calls), group=len(groups), count=len(counts))
        numbers.update(lengths)
        body = fill(about) + fill(texts) + fill(b"".join(struct.pack("<IiIII", *lane) for lane in lanes)) + fill(b"".join(nodes))
        body += fill(struct.pack(f"<{len(needs)}I", *needs)) + fill(b"".join(calls)) + fill(b"".join(groups))
        body += struct.pack(f"<{len(counts)}q", *counts)
        head = struct.pack("<8sIIdQQQ3I", b"PHASORRC", version, ranks, wall, 0, len(about), len(texts), *names)
        data = head + struct.pack("<6II", *numbers.values(), 0) + body + bytes(8)
        write("recording", name, bytes([options]) + data[:len(data) - cut])

    seed("ok_all")
    seed("ok_nothing", lanes=[], nodes=[], needs=(), calls=[], groups=[], counts=())
    for op in range(1, 5):
        counts = {1: (5, 6), 2: (9, 0), 3: (0, 6), 4: (0, 0)}[op]
        seed(f"ok_op_{op}", calls=[call(0, op=op), call(0, 1), call(1, op=op, first=1 if op > 2 else 0)], counts=(*counts, 0))
    seed("ok_low_and_copy", lanes=[(1, 0, 0, 0, 2), (0, 1, 0, 2, 1)], nodes=[node(2, to_host=1), node(), node()], needs=(), calls=[],
         groups=[], counts=())
    seed("a40_not_sealed", options=1)
    seed("a40_cut", cut=9)
    seed("a40_version", version=2)
    seed("a40_about_list", about=b"[]")
    seed("a40_text_without_end", texts=b"thing\0stage\0ta")
    seed("a40_texts_longer", texts=b"thing\0stage\0tag\0more\0")
    seed("a40_names_many", names=(2**31, 1, 1))
    seed("a40_ranks_65", ranks=65)
    seed("a40_wall_nan", wall=float("nan"))
    for field in ("lane", "node", "need", "call", "group", "count"):
        for value in (0, 1, 2**32 - 1):
            seed(f"a40_{field}_count_{value}", **{field: value})
    seed("a40_lanes_overlap", lanes=[(0, 0, 0, 0, 7), (0, 1, 0, 3, 2), (3, 0, 0, 5, 1), (2, -1, 0, 6, 1)])
    seed("a40_durations_overflow", nodes=[node(duration=2**63 - 1)] + nodes[1:])
    seed("ok_longest", nodes=[node(duration=2**62, size=2**62)] + nodes[1:])
    seed("a40_need_later", needs=(1, 0, 5))
    seed("a40_need_far", needs=(0, 0, 2**32 - 1))
    seed("a40_call_twice", calls=[call(0), call(0, 1), call(0)])
    seed("a40_call_number", calls=[call(0), call(0, 1), call(1, number=2)])
    seed("a40_counts_differ", calls=[call(0), call(0, 1), call(1, first=1)], counts=(5, 6, 7))
    seed("a40_count_negative", counts=(5, -6))


def box():
    text = (HERE.parent.parent / "docs" / "box-format.md").read_text()
    text = text[text.index("{", text.index("## A whole file")):]
    good = text[:text.index("```")]
    write("box", "ok_documented", good)

    def seed(file, /, **changes):
        value = json.loads(good)
        value.update(changes)
        write("box", file, json.dumps({key: entry for key, entry in value.items() if entry is not None}, separators=(",", ":")))

    number = {"value": 5, "unit": "GB/s", "source": "s"}
    hop = {"value": 0, "unit": "us", "source": "s"}
    link = dict(name="x", between=["gpu0", "host"], duplex="half", bandwidth=number, latency=hop)
    seed("ok_one_rank", ranks=1, links=[])
    seed("ok_memories", memories=[{"ranks": [0, 3], "bandwidth": number}], compute_slots="one")
    chain = ["gpu0"] + [f"s{i}" for i in range(9)] + ["gpu1"]
    for length in (8, 9):
        ends = chain[:length] + ["gpu1"]
        seed(f"{'ok' if length == 8 else 'a41'}_chain_{length}", ranks=2,
             links=[{**link, "name": f"l{i}", "between": [ends[i], ends[i + 1]]} for i in range(length)])
    for key in ("format", "version", "name", "ranks", "numbers", "device", "links", "protocols", "collectives"):
        seed(f"a41_without_{key}", **{key: None})
        seed(f"a41_{key}_list", **{key: []})
    for name, entry in {"negative": -1, "huge": 1e300, "text": "5", "zero": 0, "integer": 10**30}.items():
        seed(f"a41_bandwidth_{name}", links=[{**link, "bandwidth": {**number, "value": entry}}], ranks=1)
    seed("a41_no_source", ranks=1, links=[{**link, "bandwidth": {"value": 5, "unit": "GB/s"}}])
    seed("a41_links_many", ranks=1, links=[{**link, "name": f"l{i}"} for i in range(257)])
    seed("a41_ends_many", ranks=1, links=[{**link, "name": f"l{i}", "between": ["host", f"s{i}"]} for i in range(200)])
    seed("a41_between_nul", ranks=1, links=[{**link, "between": ["gpu0", "ho\0st"]}])
    seed("a41_gpu_number", ranks=1, links=[{**link, "between": ["gpu00", "host"]}])
    seed("a41_long_key", **{"k" * 100: 1})

# --- profiles ---------------------------------------------------------------------------------

def profile():
    box = {"processor": "P", "cores": 2, "kernels": "cpu (plain)", "ranks": 2, "threads": 2}
    head = {"phasor_profile": 1, "phasor": "0.1.0", "box": box}

    def points(count, **more):
        return dict({"seconds": [1e-3] * count, "spreads": [0.01] * count, "repeats": [5] * count}, **more)

    def work(kind="matmul", dtype="bfloat16", axes=(), count=1, **more):
        return dict(points(count), kind=kind, dtype=dtype, flops_per_second=1e11, bytes_per_second=1e10,
                    fixed_seconds=1e-6, axes=list(axes), log_ratios=[0.5] * count, **more)

    def file(name, **changes):
        whole = dict(head, rates={"disk_read": 1e9, "host_step_seconds": 1e-5}, work=[], collectives=[])
        whole.update(changes)
        write("profile", name, json.dumps(whole, separators=(",", ":")))

    rows = {"size": "rows", "values": [1, 8, 64]}
    per_expert = {"size": "rows", "over": "experts", "values": [1, 8]}
    gather = points(2, op="all_gather", size=2, strided=False, bytes=[64, 4096])
    file("ok_empty")
    file("ok_work", work=[work(axes=[rows], count=3), work("rows", "float32")])
    file("ok_quotient", work=[work("ffn_up", "int4", [per_expert, {"size": "width", "values": [48, 96]}], 4)])
    file("ok_collective", collectives=[gather, dict(gather, strided=True)])
    exchange = dict(gather, op="all_to_all", size=4)
    file("ok_to_one", collectives=[exchange, dict(exchange, to_one=True)])
    file("ok_attention", work=[work("attention", axes=[{"size": "pairs", "over": "tokens", "values": [1, 16]}], count=2)])
    gpus = dict(box, devices="cuda:0x2", gpus="G (sm_80)", cuda="runtime 13.0, driver 13.0", memory=1 << 34)
    file("ok_gpus", box=gpus)
    file("a12_gpus_fewer", box=dict(gpus, devices="cuda:0"))
    file("a12_gpus_memory", box=dict(gpus, memory=-1))
    file("a12_format", phasor_profile=2)
    file("a12_axis_falls", work=[work(axes=[dict(rows, values=[8, 1])], count=2)])
    file("a12_axis_zero", work=[work(axes=[dict(rows, values=[0])])])
    file("a12_axes_many", work=[work(axes=[rows] * 5, count=243)])
    file("a12_points_many", work=[work(axes=[dict(rows, values=list(range(1, 257)))] * 4)])
    file("a12_counts_differ", work=[work(axes=[rows], count=2)])
    file("a12_rate", rates={"disk_read": 1e308})
    file("a12_ratio", work=[dict(work(), log_ratios=[1e3])])
    file("a12_to_one", collectives=[dict(gather, to_one=True)])
    file("a12_size", collectives=[dict(gather, size=65)])
    file("a12_twice", work=[work(), work()])
    store = dict(head, phasor_calibration=2, points=[[0, 1, 1, 8, 64, 64, 0, 0, 0, 1e-3, 0.01, 5], [2, 1] + [0] * 7 + [1e9, 0, 1]])
    del store["phasor_profile"]
    write("profile", "ok_store", json.dumps(store))
    write("profile", "a12_store_point", json.dumps(dict(store, points=[[0] * 12])))
    write("profile", "a12_store_short", json.dumps(dict(store, points=[[0] * 11])))
    write("profile", "a09_cut", json.dumps(store)[:100])


# --- records ----------------------------------------------------------------------------------

def record():
    first = {"plan": "tp2|tp2", "transition": None, "pass_tokens": 4096, "planned_cache_bytes": 1000000, "class_end": 1}
    last = dict(first, plan="dp2|ep2>tp2", transition="reload", class_end=3)
    whole = {"phasor_run": 1, "version": "0.1.0", "begun": 1, "input": "in", "input_xxh3_128": "0" * 32, "rows": 3, "error_file": None,
             "model": "m", "model_xxh3_128": "0" * 32, "dtype": "bfloat16", "expert_dtype": "bfloat16", "chat_template": None, "seed": "0",
             "max_model_len": 512, "ignore_eos": False, "prompt_logprobs": False, "deterministic": False, "longest_sequence": 512,
             "plan": "tp2|tp2", "kernels": "cpu (plain)", "decode_weights": "native", "transition": None, "staying": None, "parts": None,
             "pass_tokens": 4096, "planned_cache_bytes": 1000000}
    parts = {"class_of_bin": [2, 0, 1], "of": [first, last]}

    def file(name, **changes):
        write("record", name, json.dumps(dict(whole, **changes), separators=(",", ":")))

    file("ok_plan")
    file("ok_stays", plan="dp2|ep2>tp2", transition="upload", staying="1,0,0;2")
    file("ok_parts", parts=parts)
    file("ok_sure", deterministic=True)
    file("a42_stays_class", staying="1,9;2")
    file("a42_stays_cut", staying="1,0,0")
    file("a42_stays_bits", staying="1,0;99999999999")
    file("a42_part_alone", parts=dict(parts, of=[dict(last, class_end=3)]))
    file("a42_class_missing", parts=dict(parts, class_of_bin=[2, 0, 0]))
    file("a42_class_beyond", parts=dict(parts, class_of_bin=[0, 1, 2, 3, 4, 5, 6, 7, 8]))
    file("a42_class_text", parts=dict(parts, class_of_bin=["2", 0, 1]))
    file("a42_end_falls", parts=dict(parts, of=[last, first]))
    file("a42_end_large", parts=dict(parts, of=[first, dict(last, class_end=1 << 62)]))
    file("a42_no_way", parts=dict(parts, of=[first, dict(last, transition=None)]))
    file("a42_int4_in_one", parts=dict(parts, of=[first, dict(last, plan="tp2|tp2>tp2:int4", transition="keep")]))
    file("a42_other_ranks", parts=dict(parts, of=[first, dict(last, plan="dp4|ep4>tp4")]))
    file("a42_pass_negative", pass_tokens=-1, parts=dict(parts, of=[dict(first, pass_tokens=1 << 62), last]))
    file("a42_parts_text", parts="tp2|tp2", plan=7, begun="now", model=None)
    write("record", "a09_cut", json.dumps(whole)[:200])
    write("record", "a42_later", json.dumps(dict(whole, phasor_run=2)))


# --- dictionaries -------------------------------------------------------------------------------

def dictionary(name, words):
    def quoted(word):
        return "".join(c if 32 <= ord(c) < 127 and c not in '"\\' else "".join(f"\\x{b:02X}" for b in c.encode("utf-8", "surrogatepass")) for c in word)
    text = "\n".join(f'"{quoted(w)}"' for w in dict.fromkeys(words))
    (HERE / f"{name}.dict").write_text(text + "\n")


JSON_WORDS = ['{', '}', '[', ']', ':', ',', '"', 'null', 'true', 'false', '0', '-1', '1e9', '1e309', '0.5', '\\u0000', '\\ud800', '\\ud83d\\ude00',
              '\\n', '2147483647', '2147483648', '4294967296', '9223372036854775807', '18446744073709551615', '18446744073709551616', '""', '{}', '[]']
SEPARATOR_WORD = [SEPARATOR.decode()]


def keys(value):
    if isinstance(value, dict):
        for key, item in value.items():
            yield f'"{key}":'
            yield from keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item)
    elif isinstance(value, str) and 0 < len(value) < 40:
        yield f'"{value}"'


def dictionaries():
    def of_corpus(target, limit=400):
        words = []
        for path in sorted((HERE / "corpus" / target).glob("*_*")):
            for part in path.read_bytes().split(SEPARATOR):
                for piece in [part] + part.split(b"\n"):
                    try:
                        words += keys(json.loads(piece))
                    except (ValueError, RecursionError):
                        pass
        return list(dict.fromkeys(words))[:limit]

    every = "F32 BF16 F16 F64 I64 I32 I16 I8 U64 U32 U16 U8 BOOL C64 F8_E4M3 F8_E5M2 F8_E8M0 F6_E2M3 F6_E3M2 F4"
    dictionary("safetensors", JSON_WORDS + ['"dtype":', '"shape":', '"data_offsets":', '"__metadata__":', '"a":', '[0,16]', '[2,2]', '[0,0]'] +
               [f'"{t}"' for t in every.split()] + ['{"dtype":"U8","shape":[1],"data_offsets":[0,1]}', 'F', 'H0\n', 'H1\n', 'H16\n'])
    dictionary("config", JSON_WORDS + SEPARATOR_WORD + of_corpus("config"))
    dictionary("index", JSON_WORDS + ['"weight_map":', '"a.safetensors"', '"link"', '"out"', '"up"', '"sub"', '../', '/', '/..', '/.', 'a.safetensors'])
    dictionary("tokenizer", JSON_WORDS + SEPARATOR_WORD + of_corpus("tokenizer", 300) + ["(a+)+$", "\\\\p{L}", "\\\\s+(?!\\\\S)", "(?i:", "\u0120", "\u2581", "<0x41>"])
    dictionary("text", [" ", "  ", "\n", "\r\n", "\t", "\u2581", "\u0301", "\u0327", "\u00e9", "\u1100", "\u1161", "\u11a8", "\uac00", "\u3000", "\u00a0", "\u4e00", "\u3042", "\U0001F600", "\u200d",
                        "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|begin|>", "<|end|>", "[left]", "[right]", "[both]", "word", "mot", "caf\u00e9", "na\u00efve",
                        "<|mask|>", "<|end", "text|>x", "'s", "'re", "'LL", "123", "<0x41>", "\u0345", "\u0f71", "\u0958", "\ufb01"])
    dictionary("batch", JSON_WORDS + ["\n", "\r\n", "\ufeff"] + of_corpus("batch"))
    dictionary("past", ["\n", PAST_ID, "1" * 32, '","custom_id":', '}},"error":null}', '"}}', "0", "f", "\0"])
    dictionary("profile", JSON_WORDS + of_corpus("profile"))
    dictionary("record", JSON_WORDS + of_corpus("record") + ['"1,0,0;2"', 'tp2dp1|tp1ep2', ':int4'])
    raw = ['"\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80"', '"\\xFF\\xFF\\xFF\\xFF\\xFF\\xFF\\xFF\\xFF"']
    with (HERE / "safetensors.dict").open("a") as out:
        out.write("\n".join(raw) + "\n")
    with (HERE / "text.dict").open("a") as out:
        out.write('"\\xF0\\x9F"\n"\\xE2\\x96"\n"\\xED\\xA0\\x80"\n"\\xC3"\n"\\x80"\n"\\xF4\\x90"\n')


if __name__ == "__main__":
    safetensors()
    config()
    index()
    tokenizer()
    text()
    batch()
    past()
    backup()
    recording()
    box()
    profile()
    record()
    dictionaries()
