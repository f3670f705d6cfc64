"""Do phasor and llama.cpp compute the same model? Without that a comparison says nothing.

phasor continues a prompt greedily and tells the log probabilities of its likeliest tokens; llama.cpp
is given the same tokens, and asked at each position for its likeliest token and for the log
probabilities of phasor's. So one different token does not make all that follow it different.
"""

import random
from dataclasses import dataclass
from statistics import median

import phasor_side

PROMPT_TOKENS = 96
STEPS = 32
LIKELIEST = 20
# Both in f32: sums in another order. With the rows of q and k not permuted, a model of two layers is
# off by 1.3 and agrees at 4 of 32 positions.
EXACT_MAX = 1e-3
# In bf16 llama.cpp rounds activations to it before each product, phasor need not; where that moves a
# token to another expert, what follows is off by more.
ROUNDED_MAX = 0.1


@dataclass
class Agreement:
    agreed: int
    steps: int
    median_difference: float
    max_difference: float

    def __str__(self):
        return (f"likeliest token the same at {self.agreed} of {self.steps} positions; log probabilities of "
                f"the {LIKELIEST} likeliest differ by {self.median_difference:.4f} (median), "
                f"{self.max_difference:.4f} (largest)")


def measure(run_llama, phasor, model_dir, folder, vocab_count, threads, gguf, phasor_options=(), is_f32=False):
    """run_llama(job) gives the result of a job of llama_side.py."""
    draw = random.Random(17)
    prompt = [draw.randrange(3, vocab_count) for _ in range(PROMPT_TOKENS)]
    _, (answer,) = phasor_side.run(phasor, model_dir, folder, [prompt], STEPS, threads, phasor_options,
                                   logprobs=LIKELIEST, return_token_ids=True)
    choice = answer["choices"][0]
    tokens, tops = choice["token_ids"], choice["logprobs"]["top_logprobs"]
    asked = [[int(name.removeprefix("token_id:")) for name in top] for top in tops]
    told = run_llama({
        "kind": "score", "gguf": str(gguf), "prompts": [prompt + tokens[:-1]], "threads": threads,
        "ubatch": 512, "flash": "off" if is_f32 else "auto", "kv_f32": is_f32,
        "asked": [[len(prompt) - 1 + step, ids] for step, ids in enumerate(asked)],
    })
    differences = [abs(ours - theirs) for top, row in zip(tops, told["logprobs"])
                   for ours, theirs in zip(top.values(), row)]
    agreed = sum(ours == theirs for ours, theirs in zip(tokens, told["likeliest"]))
    return Agreement(agreed, len(tokens), median(differences), max(differences))
