/* Rotary position embedding. Source: transformers 5, modeling_rope_utils.py, whose defaults and
 * precedence are followed; where a file says two different things, it is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "model/config_read.h"

#define THETA_MIN  2.0 /* its logarithm is divided by */
#define THETA_MAX  1e15
#define FACTOR_MAX 1e6

/* Parameters nested per kind of layer: all of them must say the same. */
static enum status choose_nested(const json_t **out, const json_t *nested, const char *file,
                                 struct error *err)
{
    const char *key, *first_key = NULL;
    json_t *value;
    const json_t *first = NULL;
    json_object_foreach((json_t *)nested, key, value)
    {
        if (json_is_null(value))
            continue;
        if (!json_is_object(value))
            return error_set(err, STATUS_FORMAT,
                             "%s: \"rope_parameters\" mixes layer types with \"%s\"", file, key);
        if (first != NULL && !json_equal(first, value))
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: \"rope_parameters\" differ between \"%s\" and \"%s\"; phasor "
                             "knows one rotary embedding for all layers",
                             file, first_key, key);
        first = value;
        first_key = key;
    }
    *out = first;
    return STATUS_OK;
}

static bool is_nested(const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        if (json_is_object(value))
            return true;
    }
    return false;
}

/* The object with the parameters under whichever key; NULL when there is none. */
static enum status find_parameters(const json_t **out, const char **out_key,
                                   struct config_source source, struct error *err)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    const json_t *found = NULL;
    for (size_t i = 0; i < 2; i++) {
        if (config_key_is_silent(source.object, keys[i]))
            continue;
        const json_t *value = json_object_get(source.object, keys[i]);
        if (!json_is_object(value))
            return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected an object, found %s",
                             source.file, keys[i], json_kind(value));
        if (is_nested(value))
            TRY(choose_nested(&value, value, source.file, err));
        if (found != NULL && !json_equal(found, value))
            return error_set(err, STATUS_FORMAT,
                             "%s: \"rope_scaling\" and \"rope_parameters\" contradict each other",
                             source.file);
        found = value;
        *out_key = keys[i];
    }
    *out = found;
    return STATUS_OK;
}

static enum status read_kind(enum rope_kind *out, struct config_source parameters,
                             struct error *err)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } kinds[] = {{"default", ROPE_PLAIN},
                 {"linear", ROPE_LINEAR},
                 {"yarn", ROPE_YARN},
                 {"llama3", ROPE_LLAMA3}};
    const char *rope_type, *type;
    TRY(json_get_string_or(&type, parameters.object, parameters.file, "type", NULL, err));
    TRY(json_get_string_or(&rope_type, parameters.object, parameters.file, "rope_type",
                           type != NULL ? type : "default", err));
    if (type != NULL && strcmp(type, rope_type) != 0)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"type\" (%s) and \"rope_type\" (%s) contradict each other",
                         parameters.file, type, rope_type);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(rope_type, kinds[i].name) == 0) {
            *out = kinds[i].kind;
            return STATUS_OK;
        }
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: rope type \"%s\" is not supported; phasor knows default, linear, yarn "
                     "and llama3",
                     parameters.file, rope_type);
}

static enum status read_theta(double *out, struct config_source source,
                              struct config_source parameters, double fallback, struct error *err)
{
    double outer, inner;
    TRY(json_get_real_or(&outer, source.object, source.file, "rope_theta", THETA_MIN, THETA_MAX, 0,
                         err));
    TRY(json_get_real_or(&inner, parameters.object, parameters.file, "rope_theta", THETA_MIN,
                         THETA_MAX, outer, err));
    if (outer != 0 && inner != outer)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"rope_theta\" is %g, but %g in the rope parameters", source.file,
                         outer, inner);
    *out = inner != 0 ? inner : fallback;
    return STATUS_OK;
}

static enum status refuse_partial(struct config_source source, struct error *err)
{
    double part;
    TRY(json_get_real_or(&part, source.object, source.file, "partial_rotary_factor", -1e9, 1e9, 1,
                         err));
    if (part == 1)
        return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: \"partial_rotary_factor\" %g is not supported; phasor rotates whole "
                     "heads",
                     source.file, part);
}

static enum status read_original_positions(struct rope_config *rope, struct config_source source,
                                           struct config_source parameters, int64_t fallback,
                                           struct error *err)
{
    static const char key[] = "original_max_position_embeddings";
    int64_t count;
    TRY(json_get_int_or(&count, parameters.object, parameters.file, key, 1, POSITIONS_MAX, fallback,
                        err));
    TRY(json_get_int_or(&count, source.object, source.file, key, 1, POSITIONS_MAX, count, err));
    rope->original_max_positions = (double)count;
    return STATUS_OK;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* 0 stands for "not given", as in `value or default` of the source. */
static enum status get_real_or_zero(double *out, struct config_source parameters, const char *key,
                                    struct error *err)
{
    return json_get_real_or(out, parameters.object, parameters.file, key, 0, FACTOR_MAX, 0, err);
}

static enum status read_yarn(struct rope_config *rope, struct config_source parameters,
                             int64_t position_count_max, struct error *err)
{
    double mscale, mscale_all_dim, attention_factor;
    TRY(get_real_or_zero(&rope->beta_fast, parameters, "beta_fast", err));
    TRY(get_real_or_zero(&rope->beta_slow, parameters, "beta_slow", err));
    TRY(get_real_or_zero(&mscale, parameters, "mscale", err));
    TRY(get_real_or_zero(&mscale_all_dim, parameters, "mscale_all_dim", err));
    TRY(json_get_bool_or(&rope->truncate, parameters.object, parameters.file, "truncate", true,
                         err));
    /* A factor of null means the ratio of the lengths; an absent one is an error there and here. */
    if (json_is_null(json_object_get(parameters.object, "factor")))
        rope->factor = (double)position_count_max / rope->original_max_positions;
    else
        TRY(json_get_real(&rope->factor, parameters.object, parameters.file, "factor", 1,
                          FACTOR_MAX, err));
    if (rope->beta_fast == 0)
        rope->beta_fast = 32;
    if (rope->beta_slow == 0)
        rope->beta_slow = 1;
    double computed = yarn_mscale(rope->factor, 1);
    if (mscale != 0 && mscale_all_dim != 0)
        computed = yarn_mscale(rope->factor, mscale) / yarn_mscale(rope->factor, mscale_all_dim);
    TRY(json_get_real_or(&attention_factor, parameters.object, parameters.file, "attention_factor",
                         1e-6, FACTOR_MAX, computed, err));
    rope->attention_factor = attention_factor;
    return STATUS_OK;
}

static enum status read_llama3(struct rope_config *rope, struct config_source parameters,
                               struct error *err)
{
    TRY(json_get_real(&rope->factor, parameters.object, parameters.file, "factor", 1, FACTOR_MAX,
                      err));
    TRY(json_get_real(&rope->low_freq_factor, parameters.object, parameters.file, "low_freq_factor",
                      1e-6, FACTOR_MAX, err));
    TRY(json_get_real(&rope->high_freq_factor, parameters.object, parameters.file,
                      "high_freq_factor", 1e-6, FACTOR_MAX, err));
    if (rope->high_freq_factor <= rope->low_freq_factor)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"high_freq_factor\" (%g) must be larger than \"low_freq_factor\" "
                         "(%g)",
                         parameters.file, rope->high_freq_factor, rope->low_freq_factor);
    return STATUS_OK;
}

/* Every key must be one that the kind is computed from, or one that changes nothing. */
static enum status refuse_unknown_keys(const struct rope_config *rope,
                                       struct config_source parameters, struct error *err)
{
    static const struct {
        const char *key;
        unsigned kinds; /* bits of enum rope_kind */
    } known[] = {
        {"type", ~0u},
        {"rope_type", ~0u},
        {"rope_theta", ~0u},
        {"partial_rotary_factor", ~0u}, /* refuse_partial has seen it */
        {"factor", 1u << ROPE_LINEAR | 1u << ROPE_YARN | 1u << ROPE_LLAMA3},
        {"original_max_position_embeddings", ~0u},
        {"attention_factor", 1u << ROPE_YARN},
        {"beta_fast", 1u << ROPE_YARN},
        {"beta_slow", 1u << ROPE_YARN},
        {"mscale", 1u << ROPE_YARN},
        {"mscale_all_dim", 1u << ROPE_YARN},
        {"truncate", 1u << ROPE_YARN},
        {"low_freq_factor", 1u << ROPE_LLAMA3},
        {"high_freq_factor", 1u << ROPE_LLAMA3},
    };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)parameters.object, key, value)
    {
        bool is_known = json_is_null(value);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known |= strcmp(key, known[i].key) == 0 && (known[i].kinds >> rope->kind & 1) != 0;
        if (!is_known)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: \"%s\" is no setting that phasor knows for this rope type",
                             parameters.file, key);
    }
    return STATUS_OK;
}

static enum status read_by_kind(struct rope_config *rope, struct config_source source,
                                struct config_source parameters, int64_t position_count_max,
                                struct error *err)
{
    switch (rope->kind) {
    case ROPE_PLAIN:
        return STATUS_OK;
    case ROPE_LINEAR:
        return json_get_real(&rope->factor, parameters.object, parameters.file, "factor", 1,
                             FACTOR_MAX, err);
    case ROPE_YARN:
        TRY(read_original_positions(rope, source, parameters, position_count_max, err));
        return read_yarn(rope, parameters, position_count_max, err);
    case ROPE_LLAMA3:
        TRY(read_original_positions(rope, source, parameters, position_count_max, err));
        return read_llama3(rope, parameters, err);
    }
    return error_set(err, STATUS_INTERNAL, "%s: rope kind without a reader", parameters.file);
}

enum status config_read_rope(struct model_config *config, struct config_source source,
                             struct error *err)
{
    struct config_source parameters = source;
    const char *key = NULL;
    char file[512];
    TRY(find_parameters(&parameters.object, &key, source, err));
    TRY(refuse_partial(source, err));
    struct rope_config rope = {.kind = ROPE_PLAIN, .factor = 1, .attention_factor = 1};
    double fallback = config->architecture->rope_theta_default;
    if (parameters.object == NULL) {
        TRY(read_theta(&rope.theta, source, source, fallback, err));
    } else {
        snprintf(file, sizeof file, "%s: %s", source.file, key);
        parameters.file = file;
        TRY(refuse_partial(parameters, err));
        TRY(read_theta(&rope.theta, source, parameters, fallback, err));
        TRY(read_kind(&rope.kind, parameters, err));
        TRY(refuse_unknown_keys(&rope, parameters, err));
        TRY(read_by_kind(&rope, source, parameters, config->position_count_max, err));
    }
    config->rope = rope;
    return STATUS_OK;
}
