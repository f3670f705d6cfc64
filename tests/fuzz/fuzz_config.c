/* config.json, and behind a line "====" generation_config.json. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/json.h"
#include "fuzz.h"
#include "model/config.h"

/* Far beyond every model; a size above it would only be a way to overflow what is computed later.
 */
#define SIZE_MAX_SANE ((int64_t)1 << 31)

static void check_rope(const struct rope_config *rope)
{
    FUZZ_CHECK(isfinite(rope->theta) && rope->theta > 0);
    if (rope->kind != ROPE_PLAIN)
        FUZZ_CHECK(isfinite(rope->factor) && rope->factor > 0);
    if (rope->kind == ROPE_YARN)
        FUZZ_CHECK(isfinite(rope->attention_factor) && isfinite(rope->beta_fast) &&
                   isfinite(rope->beta_slow) && rope->original_max_positions > 0);
    if (rope->kind == ROPE_LLAMA3)
        FUZZ_CHECK(isfinite(rope->low_freq_factor) && isfinite(rope->high_freq_factor) &&
                   rope->original_max_positions > 0);
}

static void check_names(const struct model_config *config)
{
    int64_t layers[] = {0, config->layer_count - 1};
    for (int kind = 0; kind < WEIGHT_KIND_COUNT; kind++) {
        for (size_t i = 0; i < 2; i++) {
            char name[WEIGHT_NAME_BYTES];
            int64_t shape[3];
            enum weight weight = (enum weight)kind;
            if (!weight_is_present(config, weight, layers[i]))
                continue;
            weight_name(name, sizeof name, config, weight, layers[i], config->expert_count - 1);
            FUZZ_CHECK(strlen(name) > 0 && strchr(name, '{') == NULL);
            int rank = weight_shape(shape, config, weight);
            uint64_t count = 4;
            FUZZ_CHECK(rank >= 1 && rank <= 3);
            for (int axis = 0; axis < rank; axis++) {
                FUZZ_CHECK(shape[axis] > 0);
                FUZZ_CHECK(checked_mul(&count, count, (uint64_t)shape[axis]));
            }
        }
    }
}

static void check_accepted(const struct model_config *config)
{
    const int64_t sizes[] = {config->vocab_count,       config->hidden_dim,    config->layer_count,
                             config->head_count,        config->kv_head_count, config->head_dim,
                             config->position_count_max};
    FUZZ_CHECK(config->architecture != NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        FUZZ_CHECK(sizes[i] > 0 && sizes[i] <= SIZE_MAX_SANE);
    FUZZ_CHECK(config->layer_count <= MODEL_LAYERS_MAX);
    FUZZ_CHECK(config->head_count % config->kv_head_count == 0);
    FUZZ_CHECK(config->head_dim % 2 == 0);
    FUZZ_CHECK(config->expert_count > 0 && config->expert_count <= SIZE_MAX_SANE);
    FUZZ_CHECK(config->expert_top_k > 0 && config->expert_top_k <= config->expert_count);
    FUZZ_CHECK(config->expert_dim > 0 && config->expert_dim <= SIZE_MAX_SANE);
    FUZZ_CHECK(config->shared_expert_dim >= 0 && config->shared_expert_dim <= SIZE_MAX_SANE);
    FUZZ_CHECK(config->dense_dim >= 0 && config->dense_dim <= SIZE_MAX_SANE);
    FUZZ_CHECK(config->sliding_window >= 0);
    FUZZ_CHECK(isfinite(config->norm_epsilon) && config->norm_epsilon >= 0);
    FUZZ_CHECK(config->eos_count >= 0 && config->eos_count <= MODEL_EOS_IDS_MAX);
    FUZZ_CHECK(config->bos_id >= -1 && config->bos_id <= INT32_MAX);
    for (int64_t i = 0; i < config->eos_count; i++)
        FUZZ_CHECK(config->eos_ids[i] >= 0 && config->eos_ids[i] <= INT32_MAX);
    for (int64_t i = 0; i < config->layer_count; i++) {
        const struct layer_config *layer = &config->layers[i];
        FUZZ_CHECK(layer->ffn == FFN_MOE || (layer->ffn == FFN_DENSE && config->dense_dim > 0));
        FUZZ_CHECK(!layer->sliding || config->sliding_window > 0);
    }
    check_rope(&config->rope);
    check_names(config);
}

static json_t *parse(struct fuzz_input *input)
{
    char *text;
    size_t length;
    struct error err;
    json_t *json = NULL;
    bool found = fuzz_part(&text, &length, input);
    enum status status =
        found ? json_parse_object(&json, text, length, "config.json", &err) : STATUS_OK;
    memory_free(text);
    if (status != STATUS_OK)
        fuzz_check_error(status, &err);
    return json;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct model_config config; /* static: it is large */
    struct fuzz_account account = fuzz_begin(size);
    struct fuzz_input input = {(const char *)data, size, false};
    struct error err;
    json_t *object = parse(&input), *generation = parse(&input);
    if (object != NULL) {
        enum status status = model_config_parse(&config, object, generation, "config.json", &err);
        json_decref(object);
        json_decref(generation);
        object = generation = NULL; /* the config points nowhere into them */
        if (status == STATUS_OK)
            check_accepted(&config);
        else
            fuzz_check_error(status, &err);
    }
    json_decref(generation);
    fuzz_end(&account);
    return 0;
}
