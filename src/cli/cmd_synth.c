/* phasor synth: a random checkpoint of a published shape. */
#include <stdio.h>

#include "commands.h"
#include "progress.h"
#include "stop_signal.h"

struct synth_values {
    const char *output;
    uint64_t seed, shard_size;
    int64_t layers, vocabulary, scale;
    int dtype;
    bool fused, list, quiet;
};

static struct synth_values values;

#define AT(member) offsetof(struct synth_values, member)

static const struct cli_option options[] = {
    {"output-dir", 'o', OPTION_FILE, AT(output), "DIR", "where to; made if need be, must be empty",
     0, 0, NULL},
    {"list", 0, OPTION_FLAG, AT(list), NULL, "print the known presets and exit", 0, 0, NULL},
    {"layers", 0, OPTION_COUNT, AT(layers), "COUNT", "layers (0: as published)", 0, 1024, NULL},
    {"vocab", 0, OPTION_COUNT, AT(vocabulary), "COUNT", "vocabulary (0: as published)", 0,
     2147483647, NULL},
    {"scale", 0, OPTION_COUNT, AT(scale), "DIVISOR",
     "divides widths, heads and vocabulary (1: as published)", 0, 1 << 20, NULL},
    {"seed", 0, OPTION_SEED, AT(seed), "NUMBER", "the same seed gives the same bytes (0)", 0, 0,
     NULL},
    {"dtype", 0, OPTION_WORD, AT(dtype), "TYPE", "auto (bfloat16), bfloat16 or float32", 0, 0,
     dtype_words},
    {"fused-experts", 0, OPTION_FLAG, AT(fused), NULL,
     "one tensor for all experts of a layer, as transformers 5 writes them", 0, 0, NULL},
    {"shard-size", 0, OPTION_BYTES, AT(shard_size), "SIZE", "largest file (5GB)", 0, 0x1p62, NULL},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no progress", 0, 0, NULL},
    {.name = NULL},
};

static int on_progress(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    progress_bytes(context, "synth", bytes_done, bytes_total);
    return stop_signal_get();
}

static int list_presets(void)
{
    for (const char *const *preset = phasor_synth_presets(); *preset != NULL; preset++)
        printf("%s\n", *preset);
    return EXIT_DONE;
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    if (values.list)
        return list_presets();
    if (operand_count == 0)
        return options_mistake(command, "PRESET is missing (--list prints them)");
    if (values.output == NULL)
        return options_mistake(command, "--output-dir is missing");
    struct progress progress;
    struct phasor_error err;
    struct phasor_synth_params params = phasor_synth_params_default();
    params.preset = operands[0];
    params.output_dir = values.output;
    params.seed = values.seed;
    params.layer_count = values.layers;
    params.vocab_count = values.vocabulary;
    params.scale_divisor = values.scale;
    params.dtype = (enum phasor_dtype)values.dtype;
    params.fused_experts = values.fused;
    params.shard_bytes_max = values.shard_size;
    params.progress = on_progress;
    params.progress_context = &progress;
    progress_init(&progress, values.quiet, false);
    stop_signal_catch(NULL);
    enum phasor_status status = phasor_synth(&params, &err);
    progress_erase(&progress);
    if (status == PHASOR_OK)
        return EXIT_DONE;
    int exit_code = fail(&err);
    return stop_signal_get() != 0 ? 128 + stop_signal_get() : exit_code;
}

const struct cli_command command_synth = {
    .name = "synth",
    .operands = "PRESET",
    .summary = "write a random checkpoint of a published shape, for tests and benchmarks",
    .details = "A synthetic checkpoint has no tokenizer: prompts are arrays of token ids.",
    .options = options,
    .values = &values,
    .operand_max = 1,
    .run = run,
};
