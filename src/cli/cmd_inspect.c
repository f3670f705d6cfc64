/* phasor inspect: what a checkpoint is, as a table or as JSON. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"

struct inspect_values {
    const char *revision;
    bool json;
};

static struct inspect_values values;

static const struct cli_option options[] = {
    {"json", 0, OPTION_FLAG, offsetof(struct inspect_values, json), NULL,
     "print JSON; the keys are in phasor(1)", 0, 0, NULL},
    {"revision", 0, OPTION_TEXT, offsetof(struct inspect_values, revision), "NAME",
     "branch, tag or commit of a cached model (main)", 0, 0, NULL},
    {.name = NULL},
};

static int64_t get_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static const char *get_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text == NULL ? "none" : text;
}

/* 46702792704 as "46.7 billion". */
static void format_count(char *out, size_t capacity, double count)
{
    if (count >= 1e9)
        snprintf(out, capacity, "%.1f billion", count / 1e9);
    else if (count >= 1e6)
        snprintf(out, capacity, "%.1f million", count / 1e6);
    else
        snprintf(out, capacity, "%.0f", count);
}

static void format_bytes(char *out, size_t capacity, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, capacity, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
}

static void print_row(const char *name, const char *value)
{
    printf("%-18s %s\n", name, value);
}

static void print_layers(const json_t *root)
{
    char text[160];
    snprintf(text, sizeof text, "%" PRId64 " (%" PRId64 " with experts, %" PRId64 " sliding)",
             get_int(root, "layer_count"), get_int(root, "moe_layer_count"),
             get_int(root, "sliding_layer_count"));
    print_row("layers", text);
    snprintf(text, sizeof text, "%" PRId64 " heads of %" PRId64 ", %" PRId64 " of keys and values",
             get_int(root, "head_count"), get_int(root, "head_dim"),
             get_int(root, "kv_head_count"));
    print_row("attention", text);
    snprintf(
        text, sizeof text, "%" PRId64 " per layer, %" PRId64 " for each token, %" PRId64 " wide",
        get_int(root, "expert_count"), get_int(root, "expert_top_k"), get_int(root, "expert_dim"));
    print_row("experts", text);
    if (get_int(root, "shared_expert_dim") > 0) {
        snprintf(text, sizeof text, "%" PRId64 " wide", get_int(root, "shared_expert_dim"));
        print_row("shared expert", text);
    }
    snprintf(text, sizeof text, "hidden %" PRId64 ", vocabulary %" PRId64 ", context %" PRId64,
             get_int(root, "hidden_dim"), get_int(root, "vocab_count"),
             get_int(root, "context_max"));
    print_row("sizes", text);
}

static void print_numbers(const json_t *root)
{
    char total[48], active[48], text[160];
    const json_t *parameters = json_object_get(root, "parameters");
    const json_t *kv = json_object_get(root, "kv_bytes_per_token");
    format_count(total, sizeof total, (double)get_int(parameters, "total"));
    format_count(active, sizeof active, (double)get_int(parameters, "active"));
    snprintf(text, sizeof text, "%s, %s active for a token", total, active);
    print_row("parameters", text);
    format_bytes(total, sizeof total, (double)get_int(kv, "bfloat16"));
    snprintf(text, sizeof text, "%s a token (bfloat16)", total);
    print_row("KV cache", text);
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
        format_bytes(text, sizeof text, (double)json_integer_value(value));
        print_row(name, text);
    }
}

static void print_disk(const json_t *root)
{
    char bytes[48], text[96];
    const json_t *disk = json_object_get(root, "disk");
    if (!json_is_object(disk))
        return;
    format_bytes(bytes, sizeof bytes, (double)get_int(disk, "bytes"));
    snprintf(text, sizeof text, "%s in %" PRId64 " tensors", bytes, get_int(disk, "tensor_count"));
    print_row("on disk", text);
    print_members("", json_object_get(disk, "by_dtype"));
    print_members("", json_object_get(disk, "by_part"));
}

static void print_table(const json_t *root)
{
    char text[96];
    print_row("model", get_text(root, "model"));
    print_row("architecture", get_text(root, "architecture"));
    if (json_object_get(root, "layer_count") != NULL) {
        print_row("dtype", get_text(root, "dtype"));
        print_layers(root);
        print_numbers(root);
        print_disk(root);
    }
    const json_t *tokenizer = json_object_get(root, "tokenizer");
    if (json_is_object(tokenizer)) {
        snprintf(text, sizeof text, "%" PRId64 " tokens, %" PRId64 " special",
                 get_int(tokenizer, "vocab_count"), get_int(tokenizer, "special_count"));
        print_row("tokenizer", text);
    } else {
        print_row("tokenizer", "none");
    }
    print_row("chat template", get_text(root, "chat_template"));
    const json_t *reasons = json_object_get(root, "unsupported");
    for (size_t i = 0; i < json_array_size(reasons); i++) {
        const char *reason = json_string_value(json_array_get(reasons, i));
        print_row("not supported", reason == NULL ? "?" : reason);
    }
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    (void)command;
    (void)operand_count;
    char *text;
    struct phasor_error err;
    if (phasor_inspect(&text, operands[0], values.revision, &err) != PHASOR_OK)
        return fail(&err);
    if (values.json) {
        printf("%s\n", text);
    } else {
        json_t *root = json_loads(text, 0, NULL);
        print_table(root);
        json_decref(root);
    }
    phasor_text_free(text);
    return EXIT_DONE;
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
