"""Make the small checkpoints and goldens of tests/data/models from Hugging Face transformers.

    python make_goldens.py [--out FOLDER] [CASE ...]

Every number is computed in f32 on the CPU, by the checkpoint as it is read back from the disk. Prompts are
drawn until no decision (an expert's choice, a greedy token) is close to a tie, so that another order of
summation cannot turn it.
"""

import argparse
import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from cases import CASES

PROMPT_TOKENS = 24
LONG_TOKENS = 80
GREEDY_TOKENS = 64
FIRST_TEXT_ID = 6  # the ids below are special ones
ROUTER_GAP = 4e-3  # least distance of the k-th router logit from the next
GREEDY_MARGIN = 4e-2  # least distance of the largest logit from the second
DISTINCT_TOKENS = 16  # least number of different tokens in the greedy continuation
PROMPT_TRIES = 200
ABLATION_CHANGE = 0.05  # least change of a logit by an ablation


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_lines(path, record):
    """One key a line: long lists stay readable and a change shows as a small diff."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


# Weights


def spread(name, shape, tied, rng):
    """Random values by the role of a tensor: unit inputs give outputs of order 1; no option is without effect."""
    draw = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 1.3 + 0.3 * draw
    if len(shape) == 1 and name.endswith("norm.weight"):
        return 1.0 + 0.2 * draw
    if name.endswith(".bias"):
        return (0.2 if "o_proj" in name else 0.5) * draw
    if name.endswith("embed_tokens.weight"):
        return (0.3 if tied else 0.6) * draw
    if name.endswith(("lm_head.weight", "mlp.gate.weight", "shared_expert_gate.weight")):
        return 0.3 * draw
    return draw * (1.4 / np.sqrt(shape[-1]))


def fill(model, seed):
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):  # a tied lm_head is not listed
            values = spread(name, tuple(parameter.shape), model.config.tie_word_embeddings, rng)
            parameter.copy_(torch.from_numpy(values))


# Files


def stored_names(folder):
    names = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                names[name] = file.get_slice(name).get_dtype()
    return names


def save(case, folder):
    config = {key: value for key, value in case["config"].items() if key not in ("model_type", "architectures")}
    config = AutoConfig.for_model(case["config"]["model_type"], **json.loads(json.dumps(config)))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fill(model, zlib.crc32(case["name"].encode()))
    model = model.to(getattr(torch, case["dtype"]))
    model.config.dtype = getattr(torch, case["dtype"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if case["experts"] == "fused":
        state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        model.config.architectures = case["config"]["architectures"]
        model.config.save_pretrained(folder)
    else:
        total = sum(p.numel() * p.element_size() for p in model.parameters())
        limit = total if case["shards"] == 1 else int(total / case["shards"] * 1.06)
        model.save_pretrained(folder, max_shard_size=limit)
    if case["style"] == "v4":
        write_json(folder / "config.json", {**case["config"], "torch_dtype": case["dtype"]})
    (folder / "generation_config.json").unlink(missing_ok=True)
    if case["generation"]:
        write_json(folder / "generation_config.json", case["generation"])
    check_files(case, folder)


def check_files(case, folder):
    names = stored_names(folder)
    fused = [name for name in names if name.endswith(".experts.gate_up_proj")]
    split = [name for name in names if ".experts.0." in name]
    assert bool(fused) == (case["experts"] == "fused") and bool(split) != bool(fused), sorted(names)[:8]
    assert ("lm_head.weight" in names) != case["config"]["tie_word_embeddings"]
    assert ("model.layers.0.self_attn.q_proj.bias" in names) == (
        case["config"]["model_type"] == "qwen2_moe" and case["config"].get("qkv_bias", True)
        or case["config"].get("attention_bias", False))
    if case["config"]["model_type"] == "mixtral":
        assert any(".block_sparse_moe.experts.0.w1." in name for name in split) == (case["experts"] == "split")
    assert len(list(folder.glob("*.safetensors"))) == case["shards"], sorted(folder.iterdir())
    assert len(set(names.values())) == 1


def load(folder, changes=None):
    config = AutoConfig.from_pretrained(folder)
    for key, value in (changes or {}).items():
        setattr(config, key, json.loads(json.dumps(value)))
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    problems = {key: value for key, value in report.items() if value}
    assert not problems, problems
    return model.eval()


# Goldens


class RouterGap:
    """The least distance, over all tokens and layers, of the last chosen expert's logit from the next one's."""

    def __init__(self, model):
        self.least = float("inf")
        for module in model.modules():
            if type(module).__name__.endswith("TopKRouter"):
                module.register_forward_hook(self.look)

    def look(self, module, inputs, outputs):
        top = outputs[0].topk(module.top_k + 1, dim=-1).values
        self.least = min(self.least, (top[:, -2] - top[:, -1]).min().item())

    def over(self, run):
        self.least = float("inf")
        run()
        return self.least


def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model, ids, least_margin):
    """Each step recomputes the whole sequence: the goldens do not depend on transformers' cache."""
    ids, margins = list(ids), []
    for _ in range(GREEDY_TOKENS):
        top = logits_of(model, ids)[-1].topk(2)
        margins.append((top.values[0] - top.values[1]).item())
        if margins[-1] < least_margin:
            return None, None
        ids.append(top.indices[0].item())
    return ids[-GREEDY_TOKENS:], margins


def nll(logits, ids):
    """Nats, summed over all tokens but the first."""
    logp = torch.log_softmax(logits[:-1].double(), dim=-1)
    return -logp.gather(1, torch.tensor(ids[1:])[:, None]).sum().item()


def choose_prompts(model, vocab, seed):
    """The first prompts whose decisions all keep their distance, else the best of those tried."""
    gap = RouterGap(model)
    rng = np.random.default_rng(seed)
    best_score, best = 0.0, None
    for _ in range(PROMPT_TRIES):
        prompt = rng.integers(FIRST_TEXT_ID, vocab, PROMPT_TOKENS).tolist()
        long = rng.integers(FIRST_TEXT_ID, vocab, LONG_TOKENS).tolist()
        gaps = gap.over(lambda: (logits_of(model, prompt), logits_of(model, long)))
        if gaps / ROUTER_GAP <= best_score:
            continue
        tokens, margins = greedy(model, prompt, best_score * GREEDY_MARGIN)
        if tokens is None:
            continue
        gaps = min(gaps, gap.over(lambda: logits_of(model, prompt + tokens)))
        score = min(gaps / ROUTER_GAP, min(margins) / GREEDY_MARGIN, len(set(tokens)) / DISTINCT_TOKENS)
        if score > best_score:
            best_score, best = score, (prompt, long, tokens, margins, gaps)
        if score >= 1:
            break
    return best


def check_cache(model, prompt, tokens):
    """The continuation must come out of the cached decode as well: the masks of both ways agree."""
    cache, ids, worst = DynamicCache(config=model.config), prompt, 0.0
    for step, token in enumerate(tokens):
        row = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0, -1]
        if step % 16 == 0 or step == len(tokens) - 1:
            worst = max(worst, (row - logits_of(model, prompt + tokens[:step])[-1]).abs().max().item())
        assert row.argmax().item() == token
        ids = [token]
    assert worst < 1e-3, worst


def check_ablations(case, folder, prompt, long, logits, last):
    changes = []
    for ablation in case["ablations"]:
        model = load(folder, ablation)
        change = max((logits_of(model, prompt) - logits).abs().max(), (logits_of(model, long)[-1] - last).abs().max())
        assert change > ABLATION_CHANGE, (ablation, change)
        changes.append(round(change.item(), 2))
    return changes


def make(case, out):
    folder = out / case["name"]
    save(case, folder)
    model = load(folder)
    vocab = case["config"]["vocab_size"]
    prompt, long, tokens, margins, gaps = choose_prompts(model, vocab, zlib.crc32(case["name"].encode()) ^ 1)
    logits, long_logits = logits_of(model, prompt), logits_of(model, long)
    rows = torch.cat([logits, long_logits[-1:]])
    rows.numpy().astype("<f4").tofile(folder / "goldens_logits.bin")
    write_lines(folder / "goldens.json", {
        "prompt": prompt,
        "logits_rows": len(prompt),
        "vocab": vocab,
        "greedy": tokens,
        "greedy_margin": [round(margin, 6) for margin in margins],
        "long_prompt": long,
        "long_last_row": len(prompt),
        "nll_prompt": nll(logits, prompt),
        "nll_long": nll(long_logits, long),
        "router_gap_min": round(gaps, 6),
        "greedy_margin_min": round(min(margins), 6),
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}",
    })
    check_cache(model, prompt, tokens)
    changes = check_ablations(case, folder, prompt, long, logits, long_logits[-1])
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{case['name']:18} {size // 1024:4} KiB  router gap {gaps:.4f}  greedy margin {min(margins):.4f}  "
          f"distinct {len(set(tokens)):2}  logit std {logits.std():.2f}  nll/token {nll(logits, prompt) / 23:.2f}  "
          f"ablations {changes}", flush=True)


def write_readme(out):
    lines = (Path(__file__).parent / "data_readme.md").read_text()
    rows = []
    for case in CASES:
        folder = out / case["name"]
        if folder.exists():
            size = sum(path.stat().st_size for path in folder.iterdir())
            dtype = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}[case["dtype"]]
            rows.append(f"| `{case['name']}` | {dtype} | {case['style']} | {case['covers']} | {size // 1024} |")
    (out / "README.md").write_text(lines.replace("TABLE\n", "\n".join(rows) + "\n"))


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names; none means all")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[3] / "tests/data/models")
    args = parser.parse_args()
    unknown = set(args.cases) - {case["name"] for case in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)  # one order of summation
    for case in CASES:
        if not args.cases or case["name"] in args.cases:
            make(case, args.out)
    write_readme(args.out)


if __name__ == "__main__":
    main()
