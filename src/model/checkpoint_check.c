/* Whether the tensors of a checkpoint are the ones that its config calls for. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "model/checkpoint_parts.h"

void layer_note(char out[LAYER_NOTE_BYTES], const char *tensor_name)
{
    const char *at = strstr(tensor_name, "layers.");
    out[0] = 0;
    if (at != NULL && isdigit((unsigned char)at[7]) && strspn(at + 7, "0123456789") < 10)
        snprintf(out, LAYER_NOTE_BYTES, " (layer %lld)", atoll(at + 7));
}

const struct tensor_info *checkpoint_find_weight(const struct checkpoint *checkpoint,
                                                 enum weight weight, int64_t layer, int64_t expert)
{
    char name[WEIGHT_NAME_BYTES];
    weight_name(name, sizeof name, &checkpoint->config, weight, layer, expert);
    const struct tensor_info *found = checkpoint_find(checkpoint, name);
    if (found == NULL &&
        weight_alternative_name(name, sizeof name, &checkpoint->config, weight, layer, expert))
        found = checkpoint_find(checkpoint, name);
    return found;
}

static enum status report_missing(const struct checkpoint *checkpoint, enum weight weight,
                                  int64_t layer, int64_t expert, struct error *err)
{
    char name[WEIGHT_NAME_BYTES], note[LAYER_NOTE_BYTES];
    weight_name(name, sizeof name, &checkpoint->config, weight, layer, expert);
    layer_note(note, name);
    const char *cure =
        weight == WEIGHT_HEAD ? "; config.json does not say \"tie_word_embeddings\": true" : "";
    return error_set(err, STATUS_NOT_FOUND, "%s: tensor \"%s\"%s is missing%s", checkpoint->dir,
                     name, note, cure);
}

static void format_shape(struct text *text, const int64_t *shape, int rank)
{
    for (int i = 0; i < rank; i++)
        text_append_format(text, "%s%lld", i == 0 ? "[" : ", ", (long long)shape[i]);
    text_append_string(text, rank == 0 ? "[]" : "]");
}

static enum status report_shape(const struct checkpoint *checkpoint,
                                const struct tensor_info *tensor, const int64_t *wanted, int rank,
                                struct error *err)
{
    struct text expected = {0}, found = {0};
    char note[LAYER_NOTE_BYTES];
    layer_note(note, tensor->name);
    format_shape(&expected, wanted, rank);
    format_shape(&found, tensor->shape, tensor->rank);
    enum status status = error_set(
        err, STATUS_FORMAT, "%s: tensor \"%s\"%s: config.json calls for shape %s, found %s",
        checkpoint->shards[tensor->shard].path, tensor->name, note,
        expected.failed ? "?" : expected.bytes, found.failed ? "?" : found.bytes);
    text_deinit(&expected);
    text_deinit(&found);
    return status;
}

static enum status check_tensor(const struct checkpoint *checkpoint,
                                const struct tensor_info *tensor, enum weight weight,
                                struct error *err)
{
    int64_t wanted[3];
    int rank = weight_shape(wanted, &checkpoint->config, weight);
    if (tensor->rank != rank || memcmp(tensor->shape, wanted, sizeof *wanted * (size_t)rank) != 0)
        return report_shape(checkpoint, tensor, wanted, rank, err);
    if (tensor->dtype != TENSOR_OTHER)
        return STATUS_OK;
    char note[LAYER_NOTE_BYTES];
    layer_note(note, tensor->name);
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: tensor \"%s\"%s has dtype %s; phasor reads F32, BF16 and F16 checkpoints",
                     checkpoint->shards[tensor->shard].path, tensor->name, note,
                     tensor->dtype_text);
}

static enum status check_weight(const struct checkpoint *checkpoint, enum weight weight,
                                int64_t layer, int64_t expert, struct error *err)
{
    const struct tensor_info *tensor = checkpoint_find_weight(checkpoint, weight, layer, expert);
    if (tensor == NULL)
        return report_missing(checkpoint, weight, layer, expert, err);
    return check_tensor(checkpoint, tensor, weight, err);
}

static bool is_expert_weight(enum weight weight)
{
    return weight >= WEIGHT_EXPERT_GATE && weight <= WEIGHT_FUSED_DOWN;
}

/* Fused as soon as one of the two fused tensors is there; then the experts may not stand there a
 * second time. */
static enum status check_experts(struct checkpoint *checkpoint, int64_t layer, struct error *err)
{
    const struct tensor_info *fused =
        checkpoint_find_weight(checkpoint, WEIGHT_FUSED_GATE_UP, layer, 0);
    if (fused == NULL)
        fused = checkpoint_find_weight(checkpoint, WEIGHT_FUSED_DOWN, layer, 0);
    checkpoint->fused[layer] = fused != NULL;
    if (fused != NULL) {
        const struct tensor_info *single =
            checkpoint_find_weight(checkpoint, WEIGHT_EXPERT_GATE, layer, 0);
        if (single != NULL)
            return error_set(err, STATUS_FORMAT,
                             "%s: the experts of layer %lld stand there twice, as \"%s\" and as "
                             "\"%s\"",
                             checkpoint->dir, (long long)layer, fused->name, single->name);
        TRY(check_weight(checkpoint, WEIGHT_FUSED_GATE_UP, layer, 0, err));
        return check_weight(checkpoint, WEIGHT_FUSED_DOWN, layer, 0, err);
    }
    for (int64_t expert = 0; expert < checkpoint->config.expert_count; expert++) {
        TRY(check_weight(checkpoint, WEIGHT_EXPERT_GATE, layer, expert, err));
        TRY(check_weight(checkpoint, WEIGHT_EXPERT_UP, layer, expert, err));
        TRY(check_weight(checkpoint, WEIGHT_EXPERT_DOWN, layer, expert, err));
    }
    return STATUS_OK;
}

static enum status check_layer(struct checkpoint *checkpoint, int64_t layer, struct error *err)
{
    const struct model_config *config = &checkpoint->config;
    for (enum weight weight = 0; weight < WEIGHT_KIND_COUNT; weight++) {
        if (weight_is_per_layer(weight) && !is_expert_weight(weight) &&
            weight_is_present(config, weight, layer))
            TRY(check_weight(checkpoint, weight, layer, 0, err));
    }
    return config->layers[layer].ffn == FFN_MOE ? check_experts(checkpoint, layer, err) : STATUS_OK;
}

enum status checkpoint_check_weights(struct checkpoint *checkpoint, struct error *err)
{
    for (enum weight weight = 0; weight < WEIGHT_KIND_COUNT; weight++) {
        if (!weight_is_per_layer(weight) && weight_is_present(&checkpoint->config, weight, 0))
            TRY(check_weight(checkpoint, weight, 0, 0, err));
    }
    for (int64_t layer = 0; layer < checkpoint->config.layer_count; layer++)
        TRY(check_layer(checkpoint, layer, err));
    return STATUS_OK;
}

enum status checkpoint_check_index(const struct checkpoint *checkpoint,
                                   const struct shard_index *index, struct error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(index->weight_map, name, value)
    {
        const char *wanted = json_string_value(value);
        const struct tensor_info *tensor = checkpoint_find(checkpoint, name);
        const char *found = tensor == NULL ? NULL : checkpoint->shards[tensor->shard].name;
        if (found != NULL && strcmp(found, wanted) == 0)
            continue;
        char note[LAYER_NOTE_BYTES];
        layer_note(note, name);
        return error_set(err, STATUS_FORMAT,
                         "%s/" SHARD_INDEX_NAME
                         ": tensor \"%s\"%s should lie in %s, which does not "
                         "have it%s%s",
                         checkpoint->dir, name, note, wanted, found != NULL ? "; it lies in " : "",
                         found != NULL ? found : "");
    }
    return STATUS_OK;
}
