"""The llama.cpp side: one job in one process, through llama-cpp-python's low-level API.

Reads one JSON object from standard input and writes one to standard output; compare.py starts it.
Jobs: "prefill", "decode" and "score", each with "gguf", "prompts" (lists of token ids), "threads",
"ubatch", "flash" (auto, on, off) and, for a KV cache of f32 instead of f16, "kv_f32".

Inside the timed window, of a prefill: llama_decode of all prompts, one after another, and the
likeliest token after each. Of a decode: as many passes as "steps", each of one token of every
sequence, and the likeliest token of each. Outside: loading, making batches of prompts, and one warm-up
pass over all experts, as llama.cpp's own tools do it.
"""

import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np

BATCH_TOKENS = 2048  # of one llama_decode; it cuts them into micro-batches
FLASH = {
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
LOG_ERROR = 4


@llama_cpp.llama_log_callback
def log_errors(level, text, _):
    if level == LOG_ERROR:
        sys.stderr.write(text.decode(errors="replace"))


class Context:
    def __init__(self, job, tokens_of_sequence):
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(job["gguf"].encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {job['gguf']}")
        self.vocab_count = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.context = llama_cpp.llama_init_from_model(self.model, self.params_of(job, tokens_of_sequence))
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")

    @staticmethod
    def params_of(job, tokens_of_sequence):
        count = len(job["prompts"])
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = count * (-(-tokens_of_sequence // 256) * 256)
        params.n_seq_max = count
        params.n_batch = max(BATCH_TOKENS, job["ubatch"])
        params.n_ubatch = job["ubatch"]
        params.n_threads = params.n_threads_batch = job["threads"]
        params.flash_attn_type = FLASH[job["flash"]]
        if job.get("kv_f32"):
            params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        if job["kind"] == "score":
            params.n_outputs_max = params.n_batch
            params.n_outputs_max_per_seq = params.n_batch
        return params

    def decode(self, batch):
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode: status {status}")

    def logits(self, index):
        pointer = llama_cpp.llama_get_logits_ith(self.context, index)
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.vocab_count,))

    def warm_up(self):
        llama_cpp.llama_set_warmup(self.context, True)
        self.decode(batch_of([(1, 0, 0, True), (2, 1, 0, True)]))
        llama_cpp.llama_synchronize(self.context)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        llama_cpp.llama_set_warmup(self.context, False)


def fill(batch, rows):
    """rows: (token, position, sequence, whether its logits are wanted)"""
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, is_wanted) in enumerate(rows):
        batch.token[i] = token
        batch.pos[i] = position
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = sequence
        batch.logits[i] = is_wanted


def batch_of(rows):
    batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
    fill(batch, rows)
    return batch


def prompt_batches(prompts, want_all=False):
    """Batches in order of the prompts; a long one takes several, short ones share one."""
    rows, batches = [], []
    for sequence, prompt in enumerate(prompts):
        if rows and len(rows) + len(prompt) > BATCH_TOKENS:
            batches.append(rows)
            rows = []
        last = len(prompt) - 1
        rows += [(token, p, sequence, want_all or p == last) for p, token in enumerate(prompt)]
        while len(rows) >= BATCH_TOKENS:
            batches.append(rows[:BATCH_TOKENS])
            rows = rows[BATCH_TOKENS:]
    if rows:
        batches.append(rows)
    return [(batch_of(rows), [i for i, row in enumerate(rows) if row[3]]) for rows in batches]


def run_prompts(context, batches):
    """The likeliest token after each prompt."""
    tokens = []
    for batch, wanted in batches:
        context.decode(batch)
        tokens += [int(context.logits(i).argmax()) for i in wanted]
    llama_cpp.llama_synchronize(context.context)
    return tokens


def prefill(job):
    context = Context(job, max(map(len, job["prompts"])))
    batches = prompt_batches(job["prompts"])
    context.warm_up()
    start = time.perf_counter()
    tokens = run_prompts(context, batches)
    return {"seconds": time.perf_counter() - start, "tokens": sum(map(len, job["prompts"])), "next": tokens}


def decode(job):
    prompts, steps = job["prompts"], job["steps"]
    context = Context(job, max(map(len, prompts)) + steps)
    context.warm_up()
    tokens = run_prompts(context, prompt_batches(prompts))
    batch = batch_of([(0, 0, 0, True)] * len(prompts))
    start = time.perf_counter()
    for step in range(steps):
        fill(batch, [(token, len(prompts[s]) + step, s, True) for s, token in enumerate(tokens)])
        context.decode(batch)
        tokens = [int(context.logits(s).argmax()) for s in range(len(prompts))]
    return {"seconds": time.perf_counter() - start, "tokens": steps * len(prompts)}


def score(job):
    """Log probabilities of all tokens after each position of one prompt that "asked" names, cut to the
    ids that are asked for there; and the likeliest token there."""
    context = Context(job, len(job["prompts"][0]))
    (batch, _), = prompt_batches(job["prompts"], want_all=True)
    context.decode(batch)
    likeliest, values = [], []
    for position, ids in job["asked"]:
        logits = context.logits(position).astype(np.float64)
        norm = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        likeliest.append(int(logits.argmax()))
        values.append([float(logits[i] - norm) for i in ids])
    return {"likeliest": likeliest, "logprobs": values}


def main():
    llama_cpp.llama_log_set(log_errors, None)
    llama_cpp.llama_backend_init()
    job = json.load(sys.stdin)
    result = {"prefill": prefill, "decode": decode, "score": score}[job["kind"]](job)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
