/* phasor inspect: what a checkpoint is, as a table or as JSON. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "commands.h"
#include "plan_table.h"
#include "table.h"

struct inspect_values {
    const char *revision;
    bool json;
    const char *devices, *plan;
    int dtype;
    int64_t max_num_seqs, max_num_batched_tokens;
};

static struct inspect_values values = {.max_num_seqs = 256, .max_num_batched_tokens = 2048};

#define AT(member) offsetof(struct inspect_values, member)
#define COUNT_TOP  0x1p62

static const struct cli_option options[] = {
    {"json", 0, OPTION_FLAG, AT(json), NULL, "print JSON; the keys are in phasor(1)", 0, 0, NULL},
    {"revision", 0, OPTION_TEXT, AT(revision), "NAME",
     "branch, tag or commit of a cached model (main)", 0, 0, NULL},
    {"plan", 0, OPTION_TEXT, AT(plan), "PLAN",
     "what each device would hold under a plan, such as \"tp4|ep4\"; list: all plans for "
     "--devices, "
     "and why the others cannot be",
     0, 0, NULL},
    {"devices", 0, OPTION_TEXT, AT(devices), "cpu:N",
     "for how many devices, of whatever kind (as many as the plan has)", 0, 0, NULL},
    {"dtype", 0, OPTION_WORD, AT(dtype), "TYPE",
     "with --plan: number type of the weights: auto, float32, bfloat16 (auto)", 0, 0, dtype_words},
    {"max-num-seqs", 0, OPTION_COUNT, AT(max_num_seqs), "COUNT",
     "with --plan: sequences that run at the same time (256)", 1, COUNT_TOP, NULL},
    {"max-num-batched-tokens", 0, OPTION_COUNT, AT(max_num_batched_tokens), "COUNT",
     "with --plan: tokens of one forward pass, at least --max-num-seqs (2048)", 1, COUNT_TOP, NULL},
    {.name = NULL},
};

static void print_layers(const json_t *root)
{
    char text[160];
    snprintf(text, sizeof text, "%" PRId64 " (%" PRId64 " with experts, %" PRId64 " sliding)",
             table_int(root, "layer_count"), table_int(root, "moe_layer_count"),
             table_int(root, "sliding_layer_count"));
    table_row("layers", text);
    snprintf(text, sizeof text, "%" PRId64 " heads of %" PRId64 ", %" PRId64 " of keys and values",
             table_int(root, "head_count"), table_int(root, "head_dim"),
             table_int(root, "kv_head_count"));
    table_row("attention", text);
    snprintf(text, sizeof text,
             "%" PRId64 " per layer, %" PRId64 " for each token, %" PRId64 " wide",
             table_int(root, "expert_count"), table_int(root, "expert_top_k"),
             table_int(root, "expert_dim"));
    table_row("experts", text);
    if (table_int(root, "shared_expert_dim") > 0) {
        snprintf(text, sizeof text, "%" PRId64 " wide", table_int(root, "shared_expert_dim"));
        table_row("shared expert", text);
    }
    snprintf(text, sizeof text, "hidden %" PRId64 ", vocabulary %" PRId64 ", context %" PRId64,
             table_int(root, "hidden_dim"), table_int(root, "vocab_count"),
             table_int(root, "context_max"));
    table_row("sizes", text);
}

static void print_numbers(const json_t *root)
{
    char total[48], active[48], text[160];
    const json_t *parameters = json_object_get(root, "parameters");
    const json_t *kv = json_object_get(root, "kv_bytes_per_token");
    table_format_count(total, sizeof total, (double)table_int(parameters, "total"));
    table_format_count(active, sizeof active, (double)table_int(parameters, "active"));
    snprintf(text, sizeof text, "%s, %s active for a token", total, active);
    table_row("parameters", text);
    table_format_bytes(total, sizeof total, (double)table_int(kv, "bfloat16"));
    snprintf(text, sizeof text, "%s a token (bfloat16)", total);
    table_row("KV cache", text);
}

static void print_members(const char *title, const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        char name[64], text[48];
        if (json_integer_value(value) == 0)
            continue;
        snprintf(name, sizeof name, "  %s%s", title, key);
        table_format_bytes(text, sizeof text, (double)json_integer_value(value));
        table_row(name, text);
    }
}

static void print_disk(const json_t *root)
{
    char bytes[48], text[96];
    const json_t *disk = json_object_get(root, "disk");
    if (!json_is_object(disk))
        return;
    table_format_bytes(bytes, sizeof bytes, (double)table_int(disk, "bytes"));
    snprintf(text, sizeof text, "%s in %" PRId64 " tensors", bytes,
             table_int(disk, "tensor_count"));
    table_row("on disk", text);
    print_members("", json_object_get(disk, "by_dtype"));
    print_members("", json_object_get(disk, "by_part"));
}

static void print_table(const json_t *root)
{
    char text[96];
    table_row("model", table_text(root, "model"));
    table_row("architecture", table_text(root, "architecture"));
    if (json_object_get(root, "layer_count") != NULL) {
        table_row("dtype", table_text(root, "dtype"));
        print_layers(root);
        print_numbers(root);
        print_disk(root);
    }
    const json_t *tokenizer = json_object_get(root, "tokenizer");
    if (json_is_object(tokenizer)) {
        snprintf(text, sizeof text, "%" PRId64 " tokens, %" PRId64 " special",
                 table_int(tokenizer, "vocab_count"), table_int(tokenizer, "special_count"));
        table_row("tokenizer", text);
    } else {
        table_row("tokenizer", "none");
    }
    table_row("chat template", table_text(root, "chat_template"));
    const json_t *reasons = json_object_get(root, "unsupported");
    for (size_t i = 0; i < json_array_size(reasons); i++) {
        const char *reason = json_string_value(json_array_get(reasons, i));
        table_row("not supported", reason == NULL ? "?" : reason);
    }
}

static enum phasor_status inspect(char **text, const char *model, struct phasor_error *err)
{
    struct phasor_inspect_params params = phasor_inspect_params_default();
    params.model = model;
    params.revision = values.revision;
    params.devices = values.devices;
    params.plan = values.plan;
    params.dtype = (enum phasor_dtype)values.dtype;
    params.max_num_seqs = values.max_num_seqs;
    params.max_num_batched_tokens = values.max_num_batched_tokens;
    return phasor_inspect(text, &params, err);
}

static void print(const json_t *root)
{
    print_table(root);
    plan_table_print(root, values.plan != NULL && strcmp(values.plan, "list") == 0);
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    (void)operand_count;
    char *text;
    struct phasor_error err;
    enum phasor_status status = inspect(&text, operands[0], &err);
    if (status == PHASOR_INVALID_ARGUMENT)
        return options_mistake(command, "%s", err.message);
    if (status != PHASOR_OK)
        return fail(&err);
    int code = answer_show(text, values.json, print);
    phasor_text_free(text);
    return code;
}

const struct cli_command command_inspect = {
    .name = "inspect",
    .operands = "MODEL",
    .summary = "describe a checkpoint without loading it",
    .options = options,
    .values = &values,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
