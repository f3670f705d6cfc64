"""The model card, written from the measurements so that its numbers cannot differ from them."""


def write_card(folder, model, metrics, training, greedy, sampled):
    c = model.config
    held, excerpt = metrics["held_out"], metrics["excerpt"]
    parameters = sum(p.numel() for p in model.parameters())
    size = (folder / "model.safetensors").stat().st_size
    load = metrics["expert_load_held_out"]
    peaks = metrics["largest_over_mean_load_within_a_window"]

    table = "| layer | " + " | ".join(f"expert {e}" for e in range(c.num_local_experts)) + " | largest / mean | same within a window |\n"
    table += "|---|" + "---|" * (c.num_local_experts + 2) + "\n"
    for i, row in enumerate(load):
        cells = " | ".join(f"{100 * x:.1f} %" for x in row)
        table += f"| {i} | {cells} | {max(row) * len(row):.2f} | {peaks[i]:.2f} |\n"

    def block(pairs):
        return "\n\n".join(f"Prompt `{prompt}`:\n\n```\n{text}\n```" for prompt, text in pairs)

    (folder / "README.md").write_text(f"""# kjv-moe

A Mixtral-type Mixture-of-Experts language model of {parameters / 1e6:.2f} million parameters, trained on the King James
Bible. It is small enough to lie in a repository ({size / 1e6:.2f} MB of weights) and to run anywhere, it writes
readable text, and its routing is mildly uneven (table below). It is a **base model**: it continues text.
It is not instruction-tuned; the chat template in `tokenizer_config.json` is there so that chat code paths can be
exercised, and what the model answers to it means nothing.

## Data and licence

The text is the King James Version, in the public domain (in the United Kingdom its printing is reserved by Crown
letters patent), as the Debian package `bible-kjv` prints it: 31,102 verses, a verse a line, each chapter under a
heading such as `Psalm 23`. The last {training["held_out_percent"]} % of the verses of each of the 66 books (rounded up, one at least) are
held out; neither the model nor the tokenizer has seen them. Passages that the Bible itself tells twice (Kings and
Chronicles, the Gospels) may stand in both parts.

## Shapes

| | |
|---|---|
| layers | {c.num_hidden_layers} |
| hidden size | {c.hidden_size} |
| attention heads / key-value heads / head size | {c.num_attention_heads} / {c.num_key_value_heads} / {c.head_dim} |
| experts / used by a token | {c.num_local_experts} / {c.num_experts_per_tok} |
| inner size of an expert | {c.intermediate_size} |
| vocabulary | {c.vocab_size} (3 special, 256 byte tokens, BPE pieces) |
| embedding and output matrix | {"tied" if c.tie_word_embeddings else "separate"} |
| rotary base | 10000 |
| weights | bfloat16, names as in published Mixtral checkpoints |

`max_position_embeddings` is {c.max_position_embeddings}, but the longest sequence seen in training had {training["longest_sequence"]} tokens: beyond that the
text gets worse.

## Training

`tools/bundled_model/train.py`, seed {training["seed"]}, in f32 on two CPU threads for {training["minutes"]} minutes: {training["steps"]:,} steps of {training["tokens_per_step"]:,} tokens,
{training["tokens"] / 1e6:.2f} million tokens in all, {training["epochs"]} times the {training["train_tokens"]:,} tokens of the training text. Sequences of
256 tokens for 60 % of the time, then {training["longest_sequence"]}. AdamW (0.9, 0.95), peak learning rate {training["peak_learning_rate"]}, 100 steps of warm-up,
cosine to 2 % of the peak, weight decay {training["weight_decay"]}, dropout {training["dropout"]} (after the embedding and the experts), gradient norm clipped
at 1. The load-balancing loss of Switch Transformers has the coefficient {training["balance_loss_coefficient"]} and is averaged over layers: no expert
dies, and the loads come out within a factor of two of each other in every layer.

The learning rate and the change of length went by the clock (39 minutes planned; the {training["minutes"]} include the last
measurement), and the machine was shared: for about nine minutes, all in the first fourteen, the run nearly stood
still while its learning rate came down. So `--steps {training["steps"]}` gives other weights, on a schedule by steps.
The held-out text was used for reporting only, not to choose a checkpoint or a setting.

## Loss on held-out text

Computed by `tools/bundled_model/evaluate.py` with transformers' `MixtralForCausalLM`, bf16 weights, f32
arithmetic, windows of at most 512 tokens with BOS in front, every token after BOS scored.

| | all held-out text | the excerpt in `validation.jsonl` |
|---|---|---|
| windows | {held["windows"]} | {excerpt["windows"]} |
| tokens scored | {held["tokens_scored"]:,} | {excerpt["tokens_scored"]:,} |
| nats per token | **{held["nll_nats_per_token"]:.4f}** | **{excerpt["nll_nats_per_token"]:.4f}** |
| perplexity | {held["perplexity"]:.2f} | {excerpt["perplexity"]:.2f} |
| bits per byte | {held["bits_per_byte"]:.3f} | {excerpt["bits_per_byte"]:.3f} |

Unigram baseline (counts of the training tokens, plus one) on the same held-out tokens: {metrics["unigram_nll_nats_per_token_held_out"]:.4f} nats per token.

`metrics.json` has these numbers, how exactly they are defined, and the token ids and loss of every window of the
excerpt, for comparison with other implementations.

## Load of the experts

Share of the routed tokens (each token is routed to {c.num_experts_per_tok} experts) on all held-out text; equal loads would be
{100 / c.num_local_experts:.1f} %. The last column is the mean, over windows, of the largest load in the window over the mean load in it:
a single text is more uneven than all text together (part of that is chance: a window is short). This is closer to
equal than one may want for tests of imbalance; prompts of one kind, or few tokens, are less equal than this table.

{table}
## Samples

From transformers, 100 new tokens each, bf16 weights in f32. Greedy:

{block(greedy)}

Temperature 0.8, no top-k or top-p:

{block(sampled)}
""", encoding="utf-8")
