#include "engine/routing_counts.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"

/* Passes are put together to so many choices of a layer, for each of its experts, before their
 * groups are compared: of a few, as of a step of decode, chance alone makes one group twice as full
 * as another. A file of fewer than the other says more of chance than of the router. */
#define WINDOW_CHOICES 512
#define LEAST_CHOICES  64

#define FILE_FORMAT    "phasor-routing"
#define FILE_VERSION   1
#define FILE_BYTES_MAX ((size_t)64 << 20)
#define CHOICES_MAX    0x1p60 /* of one expert */

/* Of one number of groups; means are weighted by choices. */
struct groups {
    double over_mean; /* sum: the fullest group over the mean, less 1 */
    double by_chance; /* sum: what even routing would have */
};

/* Of the passes of one phase, or of all. */
struct tally {
    uint64_t *window; /* [layer][expert]: choices since the groups were compared last */
    int64_t window_choices;
    double choices; /* of all windows and layers that were compared */
    int64_t tokens;
    struct groups of[ROUTING_GROUPS_MAX + 1];
};

struct routing_counts {
    const struct model_config *config;
    int64_t token_max, passes;
    int32_t *ids;     /* [layer][token_max][top_k] */
    uint64_t *totals; /* [layer][expert]: choices of all passes */
    struct tally all, of_phase[PHASE_COUNT];
};

static const char counting[] = "counting how experts are chosen"; /* what memory is for */
static const char all_key[] = "fullest_group";
static const char *const phase_keys[PHASE_COUNT] = {
    [PHASE_PREFILL] = "fullest_group_prefill",
    [PHASE_DECODE] = "fullest_group_decode",
};

static bool is_moe(const struct model_config *config, int64_t layer)
{
    return config->layers[layer].ffn == FFN_MOE;
}

static int64_t moe_count(const struct model_config *config)
{
    int64_t count = 0;
    for (int64_t layer = 0; layer < config->layer_count; layer++)
        count += is_moe(config, layer);
    return count;
}

/* Numbers of groups that experts can lie in. */
static bool are_groups(const struct model_config *config, int64_t groups)
{
    return groups >= 2 && groups <= ROUTING_GROUPS_MAX && config->expert_count % groups == 0;
}

/* [layer][expert] */
static enum status choices_get(uint64_t **out, const struct model_config *config, struct error *err)
{
    return memory_get((void **)out, (size_t)config->layer_count,
                      (size_t)config->expert_count * sizeof **out, counting, err);
}

enum status routing_counts_create(struct routing_counts **out, const struct model_config *config,
                                  int64_t token_max, struct error *err)
{
    size_t layers = (size_t)config->layer_count;
    struct routing_counts *counts;
    ASSERT(config->expert_count > 0 && token_max > 0);
    TRY(memory_get((void **)&counts, 1, sizeof *counts, counting, err));
    counts->config = config;
    counts->token_max = token_max;
    enum status status =
        memory_get((void **)&counts->ids, layers * (size_t)token_max,
                   (size_t)config->expert_top_k * sizeof *counts->ids, counting, err);
    if (status == STATUS_OK)
        status = choices_get(&counts->totals, config, err);
    if (status == STATUS_OK)
        status = choices_get(&counts->all.window, config, err);
    for (int phase = 0; phase < PHASE_COUNT && status == STATUS_OK; phase++)
        status = choices_get(&counts->of_phase[phase].window, config, err);
    if (status == STATUS_OK)
        *out = counts;
    else
        routing_counts_destroy(counts);
    return status;
}

void routing_counts_destroy(struct routing_counts *counts)
{
    if (counts == NULL)
        return;
    memory_free(counts->ids);
    memory_free(counts->totals);
    memory_free(counts->all.window);
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        memory_free(counts->of_phase[phase].window);
    memory_free(counts);
}

int32_t *routing_counts_ids(struct routing_counts *counts)
{
    return counts->ids;
}

/* ---- Counting -------------------------------------------------------------------------------- */

static double fullest_over_mean(const uint64_t *counts, int64_t expert_count, int64_t groups)
{
    int64_t each = expert_count / groups;
    uint64_t all = 0, fullest = 0;
    for (int64_t g = 0; g < groups; g++) {
        uint64_t sum = 0;
        for (int64_t e = g * each; e < (g + 1) * each; e++)
            sum += counts[e];
        all += sum;
        fullest = sum > fullest ? sum : fullest;
    }
    return (double)fullest * (double)groups / (double)all;
}

/* Of one layer's window. */
static void groups_compare(struct tally *tally, const struct model_config *config,
                           const uint64_t *window)
{
    double choices = (double)tally->window_choices;
    for (int64_t groups = 2; groups <= ROUTING_GROUPS_MAX; groups++) {
        if (!are_groups(config, groups))
            continue;
        double over = fullest_over_mean(window, config->expert_count, groups) - 1;
        tally->of[groups].over_mean += choices * over;
        tally->of[groups].by_chance +=
            choices * fmin(routing_by_chance((int)groups, choices), (double)groups - 1);
    }
    tally->choices += choices;
}

static void window_end(struct tally *tally, const struct model_config *config)
{
    for (int64_t layer = 0; layer < config->layer_count && tally->window_choices > 0; layer++) {
        uint64_t *window = tally->window + layer * config->expert_count;
        if (!is_moe(config, layer))
            continue;
        groups_compare(tally, config, window);
        memset(window, 0, (size_t)config->expert_count * sizeof *window);
    }
    tally->window_choices = 0;
}

/* Of so many tokens more, whose choices are in the window. */
static void tally_add(struct tally *tally, const struct model_config *config, int64_t token_count)
{
    tally->tokens += token_count;
    tally->window_choices += token_count * config->expert_top_k;
    if (tally->window_choices >= WINDOW_CHOICES * config->expert_count)
        window_end(tally, config);
}

void routing_counts_add(struct routing_counts *counts, enum phase phase, int64_t token_count)
{
    const struct model_config *config = counts->config;
    int64_t top_k = config->expert_top_k;
    struct tally *all = &counts->all, *own = &counts->of_phase[phase];
    ASSERT(token_count <= counts->token_max);
    for (int64_t layer = 0; layer < config->layer_count; layer++) {
        const int32_t *ids = counts->ids + layer * counts->token_max * top_k;
        int64_t first = layer * config->expert_count;
        for (int64_t i = 0; is_moe(config, layer) && i < token_count * top_k; i++) {
            counts->totals[first + ids[i]]++;
            all->window[first + ids[i]]++;
            own->window[first + ids[i]]++;
        }
    }
    counts->passes++;
    tally_add(all, config, token_count);
    tally_add(own, config, token_count);
}

int64_t routing_counts_tokens(const struct routing_counts *counts)
{
    return counts->all.tokens;
}

int64_t routing_counts_least(const struct model_config *config)
{
    return ceil_div(LEAST_CHOICES * config->expert_count, config->expert_top_k);
}

/* ---- The file -------------------------------------------------------------------------------- */

static void write_groups(struct json_writer *json, const char *key, const struct tally *tally,
                         const struct model_config *config)
{
    json_write_key(json, key);
    json_write_open(json, '[');
    for (int64_t groups = 2; groups <= ROUTING_GROUPS_MAX && tally->choices > 0; groups++) {
        if (!are_groups(config, groups))
            continue;
        double over = tally->of[groups].over_mean / tally->choices;
        double by_chance = tally->of[groups].by_chance / tally->choices;
        double excess = over > by_chance ? sqrt(over * over - by_chance * by_chance) : 0;
        json_write_open(json, '{');
        json_write_key(json, "groups");
        json_write_int(json, groups);
        json_write_key(json, "over_mean");
        json_write_number(json, 1 + over);
        json_write_key(json, "by_chance");
        json_write_number(json, 1 + by_chance);
        json_write_key(json, "excess");
        json_write_number(json, excess);
        json_write_close(json, '}');
    }
    json_write_close(json, ']');
}

/* Of all passes; and of a phase's, where these are enough and not the same. */
static void write_fullest(struct json_writer *json, struct routing_counts *counts)
{
    const struct model_config *config = counts->config;
    window_end(&counts->all, config);
    write_groups(json, all_key, &counts->all, config);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        struct tally *tally = &counts->of_phase[phase];
        if (tally->tokens == counts->all.tokens || tally->tokens < routing_counts_least(config))
            continue;
        window_end(tally, config);
        write_groups(json, phase_keys[phase], tally, config);
    }
}

static void write_layers(struct json_writer *json, const struct routing_counts *counts)
{
    const struct model_config *config = counts->config;
    json_write_key(json, "layers");
    json_write_open(json, '[');
    for (int64_t layer = 0; layer < config->layer_count; layer++) {
        const uint64_t *totals = counts->totals + layer * config->expert_count;
        if (!is_moe(config, layer))
            continue;
        json_write_open(json, '{');
        json_write_key(json, "layer");
        json_write_int(json, layer);
        json_write_key(json, "choices");
        json_write_open(json, '[');
        for (int64_t e = 0; e < config->expert_count; e++)
            json_write_int(json, (int64_t)totals[e]);
        json_write_close(json, ']');
        json_write_close(json, '}');
    }
    json_write_close(json, ']');
}

void routing_counts_write(struct text *out, struct routing_counts *counts, const char *model_name)
{
    struct json_writer json = {.out = out};
    json_write_open(&json, '{');
    json_write_key(&json, "format");
    json_write_string(&json, FILE_FORMAT);
    json_write_key(&json, "version");
    json_write_int(&json, FILE_VERSION);
    json_write_key(&json, "model_id");
    json_write_string(&json, model_name);
    json_write_key(&json, "experts");
    json_write_int(&json, counts->config->expert_count);
    json_write_key(&json, "top_k");
    json_write_int(&json, counts->config->expert_top_k);
    json_write_key(&json, "tokens");
    json_write_int(&json, counts->all.tokens);
    json_write_key(&json, "passes");
    json_write_int(&json, counts->passes);
    write_fullest(&json, counts);
    write_layers(&json, counts);
    json_write_close(&json, '}');
    text_append_string(out, "\n");
}

/* ---- Reading --------------------------------------------------------------------------------- */

static enum status check_head(const json_t *root, const char *path,
                              const struct model_config *config, struct error *err)
{
    const char *format;
    int64_t version, experts, top_k, tokens;
    TRY(json_get_string(&format, root, path, "format", err));
    if (strcmp(format, FILE_FORMAT) != 0)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"format\": expected \"" FILE_FORMAT "\", found \"%s\"", path,
                         format);
    TRY(json_get_int(&version, root, path, "version", FILE_VERSION, FILE_VERSION, err));
    TRY(json_get_int(&experts, root, path, "experts", 1, MODEL_EXPERTS_MAX, err));
    TRY(json_get_int(&top_k, root, path, "top_k", 1, MODEL_EXPERTS_MAX, err));
    TRY(json_get_int(&tokens, root, path, "tokens", 0, (int64_t)1 << 60, err));
    const json_t *layers = json_object_get(root, "layers");
    int64_t layer_count = (int64_t)json_array_size(layers), own = moe_count(config);
    if (!json_is_array(layers))
        return error_set(err, STATUS_FORMAT, "%s: \"layers\": expected an array, found %s", path,
                         json_kind(layers));
    if (experts != config->expert_count || top_k != config->expert_top_k || layer_count != own)
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "%s was counted with a model of %lld layers with experts that takes %lld of "
            "%lld for a token, and this one has %lld and takes %lld of %lld; count with "
            "this model (phasor run --routing-counts)",
            path, (long long)layer_count, (long long)top_k, (long long)experts, (long long)own,
            (long long)config->expert_top_k, (long long)config->expert_count);
    int64_t least = routing_counts_least(config);
    if (tokens < least)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s was counted over %lld tokens, of which chance says more than the "
                         "router; count at least %lld",
                         path, (long long)tokens, (long long)least);
    return STATUS_OK;
}

/* `excess` by the number of groups. */
static enum status read_groups(double *excess, const json_t *root, const char *key,
                               const char *path, const struct model_config *config,
                               struct error *err)
{
    size_t index, found = 0, wanted = 0;
    const json_t *entry, *list = json_object_get(root, key);
    bool is_known[ROUTING_GROUPS_MAX + 1] = {false};
    if (!json_is_array(list))
        return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected an array, found %s", path, key,
                         json_kind(list));
    json_array_foreach(list, index, entry)
    {
        int64_t groups;
        double value;
        if (!json_is_object(entry))
            return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected objects, found %s", path,
                             key, json_kind(entry));
        TRY(json_get_int(&groups, entry, path, "groups", 2, ROUTING_GROUPS_MAX, err));
        TRY(json_get_real(&value, entry, path, "excess", 0, ROUTING_GROUPS_MAX, err));
        excess[groups] = value;
        is_known[groups] = true;
    }
    for (int64_t groups = 2; groups <= ROUTING_GROUPS_MAX; groups++) {
        wanted += are_groups(config, groups);
        found += are_groups(config, groups) && is_known[groups];
    }
    if (found == wanted)
        return STATUS_OK;
    return error_set(err, STATUS_FORMAT,
                     "%s: \"%s\" has %zu of the %zu numbers of groups that %lld experts can lie "
                     "in; a run that computed tokens writes all",
                     path, key, found, wanted, (long long)config->expert_count);
}

/* Files of before phases were told apart have none of their own. */
static enum status read_fullest(struct routing *out, const json_t *root, const char *path,
                                const struct model_config *config, struct error *err)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        out->is_own[phase] = json_object_get(root, phase_keys[phase]) != NULL;
        TRY(read_groups(out->excess[phase], root, all_key, path, config, err));
        if (out->is_own[phase])
            TRY(read_groups(out->excess[phase], root, phase_keys[phase], path, config, err));
    }
    return STATUS_OK;
}

/* By how much experts' shares of a layer's choices differ, squared, relative to the mean, beyond
 * what chance makes of them; -1: the layer does not tell. */
static enum status read_variance(double *out, const json_t *layer, const char *path,
                                 const struct model_config *config, struct error *err)
{
    const json_t *list = json_object_get(layer, "choices"), *entry;
    const double experts = (double)config->expert_count;
    double sum = 0, squares = 0;
    size_t index;
    *out = -1;
    if (list == NULL)
        return STATUS_OK;
    if (json_array_size(list) != (size_t)config->expert_count)
        return error_set(err, STATUS_FORMAT, "%s: \"choices\": expected %lld counts, found %zu",
                         path, (long long)config->expert_count, json_array_size(list));
    json_array_foreach(list, index, entry)
    {
        double count = json_number_value(entry);
        if (!json_is_number(entry) || !(count >= 0 && count <= CHOICES_MAX))
            return error_set(err, STATUS_FORMAT, "%s: \"choices\": expected counts, found %s", path,
                             json_kind(entry));
        sum += count;
        squares += count * count;
    }
    if (!(sum > 0))
        return STATUS_OK;
    double mean = sum / experts, by_chance = (1 - (double)config->expert_top_k / experts) / mean;
    *out = fmax(squares / experts / (mean * mean) - 1 - by_chance, 0);
    return STATUS_OK;
}

/* The deviation of all layers, where each tells. */
static enum status read_deviation(double *out, const json_t *root, const char *path,
                                  const struct model_config *config, struct error *err)
{
    const json_t *layers = json_object_get(root, "layers"), *layer;
    double sum = 0, variance;
    bool tells = true;
    size_t index;
    json_array_foreach(layers, index, layer)
    {
        TRY(read_variance(&variance, layer, path, config, err));
        tells &= variance >= 0;
        sum += variance;
    }
    size_t count = json_array_size(layers);
    *out = tells && count > 0 ? sqrt(sum / (double)count) : 0;
    return STATUS_OK;
}

static enum status counts_read(struct routing *out, const char *path,
                               const struct model_config *config, struct error *err)
{
    json_t *root;
    TRY(json_load_object(&root, path, FILE_BYTES_MAX, err));
    *out = (struct routing){.is_counted = true};
    enum status status = check_head(root, path, config, err);
    if (status == STATUS_OK)
        status = read_fullest(out, root, path, config, err);
    if (status == STATUS_OK)
        status = read_deviation(&out->deviation, root, path, config, err);
    json_decref(root);
    return status;
}

enum status routing_counts_read(struct routing *out, const char *path,
                                const struct model_config *config, struct error *err)
{
    struct error cause;
    enum status status = counts_read(out, path, config, &cause);
    if (status == STATUS_OK)
        return STATUS_OK;
    return error_set(err, status, "--routing: %s%s", cause.message,
                     status == STATUS_FORMAT ? "; phasor run --routing-counts writes what it takes"
                                             : "");
}
