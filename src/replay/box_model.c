#include "replay/box_model.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "replay/box_draw.h"
#include "replay/box_place.h"

/* Indexed by their enums; docs/box-format.md. */
static const char *const work_names[WORK_KIND_COUNT] = {"other",    "matmul", "attention", "ffn_up",
                                                        "ffn_down", "rows",   "dequantize"};
static const char *const op_names[COLLECTIVE_OP_COUNT] = {"all_gather", "reduce_scatter",
                                                          "all_reduce", "all_to_all", "exchange"};
static const char *const algorithm_names[ALGORITHM_COUNT] = {"direct", "ring"};

/* ---- The device ------------------------------------------------------------------------------ */

static enum status get_efficiencies(double out[WORK_KIND_COUNT], const struct place *device,
                                    const char *key)
{
    struct place place;
    TRY(place_enter_key(&place, device, key,
                        "other matmul attention ffn_up ffn_down rows dequantize "));
    for (int work = 0; work < WORK_KIND_COUNT; work++)
        TRY(place_get_number(&out[work], &place, work_names[work], SHARE));
    return STATUS_OK;
}

static enum status read_size(uint64_t *out, const struct place *place, const char *key)
{
    double size;
    TRY(place_get_number(&size, place, key, SIZE));
    if (size >= 0x1p60)
        return place_refuse(place, key, "is more than a machine can have");
    *out = (uint64_t)size;
    return STATUS_OK;
}

static enum status read_device(struct box_model *box, const struct place *file)
{
    struct box_device *device = &box->device;
    struct place place;
    TRY(place_enter_key(&place, file, "device",
                        "peak_compute memory_bandwidth memory_size launch compute_efficiency "
                        "memory_efficiency "));
    TRY(place_get_number(&device->peak_flops, &place, "peak_compute", COMPUTE));
    TRY(place_get_number(&device->memory_bytes_per_second, &place, "memory_bandwidth", BANDWIDTH));
    TRY(read_size(&device->memory_bytes, &place, "memory_size"));
    TRY(place_get_number(&device->launch, &place, "launch", SECONDS));
    TRY(get_efficiencies(device->flops_efficiency, &place, "compute_efficiency"));
    return get_efficiencies(device->bytes_efficiency, &place, "memory_efficiency");
}

/* ---- Links ----------------------------------------------------------------------------------- */

/* The number behind "gpu" or "rank"; -1: it is no such name. */
static int rank_of(const char *name)
{
    size_t prefix = strncmp(name, "gpu", 3) == 0 ? 3 : strncmp(name, "rank", 4) == 0 ? 4 : 0;
    const char *digits = name + prefix;
    size_t length = strlen(digits);
    int rank = 0;
    if (prefix == 0 || length < 1 || length > 3 || strspn(digits, "0123456789") != length ||
        (digits[0] == '0' && length > 1))
        return -1;
    for (; *digits != '\0'; digits++)
        rank = 10 * rank + (*digits - '0');
    return rank;
}

static enum status add_end(int *out, struct box_model *box, const struct place *link,
                           const char *name)
{
    if (name[0] == '\0' || strlen(name) >= sizeof box->end_names[0] || !place_is_name(name))
        return place_refuse(link, "between",
                            "expected names of a to z, digits, - and _, to 31 bytes");
    if (box->end_count == BOX_ENDS_MAX)
        return error_set(link->err, STATUS_LIMIT, "%s: more than %d ends of links", link->name,
                         BOX_ENDS_MAX);
    strcpy(box->end_names[box->end_count], name);
    if (strcmp(name, "host") == 0)
        box->host = box->end_count;
    if (strcmp(name, "disk") == 0)
        box->disk = box->end_count;
    *out = box->end_count++;
    return STATUS_OK;
}

/* An end that there is, or a new one. */
static enum status find_end(int *out, struct box_model *box, const struct place *link, int which)
{
    const json_t *value = json_array_get(json_object_get(link->object, "between"), (size_t)which);
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return place_refuse(link, "between", "expected two strings");
    const char *name = json_string_value(value);
    int rank = rank_of(name);
    if (rank >= box->rank_count)
        return error_set(link->err, STATUS_FORMAT,
                         "%s: \"between\": there is no %s: \"ranks\" is %d", link->name, name,
                         box->rank_count);
    for (*out = rank >= 0 ? rank : box->rank_count; *out < box->end_count; (*out)++) {
        if (rank >= 0 || strcmp(box->end_names[*out], name) == 0)
            return STATUS_OK;
    }
    return add_end(out, box, link, name);
}

static enum status read_link(struct box_model *box, const struct place *file, size_t index)
{
    static const char *const duplexes[] = {"full", "half"};
    struct box_link *link = &box->links[index];
    struct place place;
    size_t end_count;
    int duplex;
    TRY(place_enter_item(&place, file, "links", index, "name between duplex bandwidth latency "));
    TRY(place_copy_name(link->name, sizeof link->name, &place, "name"));
    for (size_t other = 0; other < index; other++) {
        if (strcmp(box->links[other].name, link->name) == 0)
            return place_refuse(&place, "name", "another link has it");
    }
    TRY(place_get_array(&end_count, &place, "between", 2, 2));
    TRY(find_end(&link->ends[0], box, &place, 0));
    TRY(find_end(&link->ends[1], box, &place, 1));
    if (link->ends[0] == link->ends[1])
        return place_refuse(&place, "between", "the two ends are one");
    TRY(place_get_word(&duplex, &place, "duplex", duplexes, 2));
    link->is_half_duplex = duplex == 1;
    TRY(place_get_number(&link->bytes_per_second, &place, "bandwidth", BANDWIDTH));
    return place_get_number(&link->latency, &place, "latency", SECONDS);
}

/* A switch of one link leads nowhere. */
static enum status check_switches(const struct box_model *box, const struct place *file)
{
    for (int end = box->rank_count; end < box->end_count; end++) {
        int count = 0;
        for (int l = 0; l < box->link_count; l++)
            count += box->links[l].ends[0] == end || box->links[l].ends[1] == end;
        if (count < 2 && end != box->host && end != box->disk)
            return error_set(file->err, STATUS_FORMAT,
                             "%s: links: %s is the end of one link only; is its name misspelt?",
                             file->name, box->end_names[end]);
    }
    return STATUS_OK;
}

static enum status check_route(const struct box_model *box, const struct place *file, int from,
                               int to)
{
    struct box_route route;
    if (box_model_route(&route, box, from, to, NULL) == STATUS_OK)
        return STATUS_OK;
    return error_set(file->err, STATUS_FORMAT,
                     "%s: links: no route of at most %d links joins %s and "
                     "%s",
                     file->name, BOX_ROUTE_MAX, box->end_names[from], box->end_names[to]);
}

static enum status check_routes(const struct box_model *box, const struct place *file)
{
    for (int rank = 0; rank < box->rank_count; rank++) {
        for (int other = 0; other < rank; other++)
            TRY(check_route(box, file, rank, other));
        if (box->host >= 0)
            TRY(check_route(box, file, rank, box->host));
    }
    if (box->disk >= 0 && box->host < 0)
        return error_set(file->err, STATUS_FORMAT, "%s: links: a disk, and no host that reads it",
                         file->name);
    return box->disk < 0 ? STATUS_OK : check_route(box, file, box->disk, box->host);
}

static enum status read_links(struct box_model *box, const struct place *file)
{
    size_t count;
    TRY(place_get_array(&count, file, "links", 0, BOX_LINKS_MAX));
    for (size_t index = 0; index < count; index++)
        TRY(read_link(box, file, index));
    box->link_count = (int)count;
    TRY(check_switches(box, file));
    return check_routes(box, file);
}

/* ---- Collectives ----------------------------------------------------------------------------- */

static enum status read_protocol(struct box_protocol *out, const struct place *file,
                                 const char *name)
{
    struct place protocols, place;
    TRY(place_enter_key(&protocols, file, "protocols", NULL));
    if (strlen(name) >= sizeof out->name)
        return error_set(file->err, STATUS_FORMAT, "%s: protocols: \"%s\" is longer than %zu bytes",
                         file->name, name, sizeof out->name - 1);
    strcpy(out->name, name);
    TRY(place_enter_key(&place, &protocols, name,
                        "base_latency step_latency message_latency efficiency "));
    TRY(place_get_number(&out->base_latency, &place, "base_latency", SECONDS));
    TRY(place_get_number(&out->step_latency, &place, "step_latency", SECONDS));
    out->message_latency = 0;
    if (json_object_get(place.object, "message_latency") != NULL)
        TRY(place_get_number(&out->message_latency, &place, "message_latency", SECONDS));
    return place_get_number(&out->efficiency, &place, "efficiency", SHARE);
}

static enum status read_collective(struct box_collective *out, const struct place *file,
                                   const struct place *collectives, enum collective_op op)
{
    struct place place;
    size_t count;
    int algorithm;
    TRY(place_enter_key(&place, collectives, op_names[op], "algorithm protocols "));
    TRY(place_get_word(&algorithm, &place, "algorithm", algorithm_names, ALGORITHM_COUNT));
    out->algorithm = (enum algorithm)algorithm;
    if (algorithm == ALGORITHM_RING &&
        (op == COLLECTIVE_OP_ALL_TO_ALL || op == COLLECTIVE_OP_EXCHANGE))
        return place_refuse(&place, "algorithm", "expected \"direct\"");
    TRY(place_get_array(&count, &place, "protocols", 1, BOX_PROTOCOLS_MAX));
    for (size_t p = 0; p < count; p++) {
        const json_t *name = json_array_get(json_object_get(place.object, "protocols"), p);
        if (!json_is_string(name))
            return place_refuse(&place, "protocols", "expected names of protocols");
        TRY(read_protocol(&out->protocols[p], file, json_string_value(name)));
    }
    out->protocol_count = (int)count;
    return STATUS_OK;
}

static enum status read_collectives(struct box_model *box, const struct place *file)
{
    struct place place;
    TRY(place_enter_key(&place, file, "collectives",
                        "all_gather reduce_scatter all_reduce all_to_all exchange "));
    for (int op = 0; op < COLLECTIVE_OP_COUNT; op++)
        TRY(read_collective(&box->collectives[op], file, &place, (enum collective_op)op));
    return STATUS_OK;
}

/* ---- Memories and slots ---------------------------------------------------------------------- */

static enum status read_memory(struct box_model *box, const struct place *file, size_t index)
{
    struct place place;
    size_t count;
    TRY(place_enter_item(&place, file, "memories", index, "ranks bandwidth "));
    TRY(place_get_number(&box->memory_bytes_per_second[index], &place, "bandwidth", BANDWIDTH));
    TRY(place_get_array(&count, &place, "ranks", 1, (size_t)box->rank_count));
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(json_object_get(place.object, "ranks"), i);
        json_int_t rank = json_is_integer(value) ? json_integer_value(value) : -1;
        if (rank < 0 || rank >= box->rank_count)
            return place_refuse(&place, "ranks", "expected numbers of ranks");
        if (box->memory_of[rank] >= 0)
            return place_refuse(&place, "ranks", "a rank is in two memories");
        box->memory_of[rank] = (int)index;
    }
    return STATUS_OK;
}

static enum status read_memories(struct box_model *box, const struct place *file)
{
    static const char *const slots[] = {"each", "one"};
    size_t count = 0;
    int slot = 0;
    for (int rank = 0; rank < RECORDING_RANKS_MAX; rank++)
        box->memory_of[rank] = -1;
    if (json_object_get(file->object, "memories") != NULL)
        TRY(place_get_array(&count, file, "memories", 0, RECORDING_RANKS_MAX));
    for (size_t index = 0; index < count; index++)
        TRY(read_memory(box, file, index));
    box->memory_count = (int)count;
    if (json_object_get(file->object, "compute_slots") != NULL)
        TRY(place_get_word(&slot, file, "compute_slots", slots, 2));
    box->has_one_slot = slot == 1;
    if (json_object_get(file->object, "host_memory") != NULL)
        TRY(read_size(&box->host_bytes, file, "host_memory"));
    return STATUS_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static enum status read_head(struct box_model *box, const struct place *file)
{
    const char *format;
    int64_t number;
    TRY(place_check_keys(file, "format version name title ranks numbers device links protocols "
                               "collectives memories compute_slots host_memory "));
    TRY(place_get_text(&format, file, "format"));
    if (strcmp(format, "phasor box") != 0)
        return place_refuse(file, "format", "expected \"phasor box\"");
    TRY(json_get_int(&number, file->object, file->name, "version", 1, 1, file->err));
    TRY(place_copy_name(box->name, sizeof box->name, file, "name"));
    TRY(place_copy_text(box->title, sizeof box->title, file, "title"));
    TRY(json_get_int(&number, file->object, file->name, "ranks", 1, RECORDING_RANKS_MAX,
                     file->err));
    box->rank_count = box->end_count = (int)number;
    for (int rank = 0; rank < box->rank_count; rank++)
        snprintf(box->end_names[rank], sizeof box->end_names[rank], "gpu%d", rank);
    return STATUS_OK;
}

static enum status read_file(struct box_model *box, struct place *file)
{
    TRY(read_head(box, file));
    TRY(place_take_numbers(file));
    TRY(read_device(box, file));
    TRY(read_links(box, file));
    TRY(read_collectives(box, file));
    return read_memories(box, file);
}

static enum status read_whole(struct box_model *out, const json_t *json, const char *path,
                              struct error *err)
{
    struct box_model box = {.host = -1, .disk = -1};
    struct place file = {.object = json, .err = err};
    snprintf(file.name, sizeof file.name, "%s", path);
    TRY(read_file(&box, &file));
    *out = box;
    return STATUS_OK;
}

static enum status read_drawn(struct box_model *out, json_t *json, const char *path, uint64_t draw,
                              struct error *err)
{
    int count = box_draw(json, draw);
    if (count < 0)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for the numbers of a box");
    if (count == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: no number has a \"range\" to be drawn from", path);
    return read_whole(out, json, path, err);
}

/* Drawn once it is known to be right as it stands. */
enum status box_model_of(struct box_model *out, json_t *json, const char *path, uint64_t draw,
                         struct error *err)
{
    TRY(read_whole(out, json, path, err));
    return draw == 0 ? STATUS_OK : read_drawn(out, json, path, draw, err);
}

enum status box_model_read(struct box_model *out, const char *path, struct error *err)
{
    json_t *json;
    TRY(json_load_object(&json, path, BOX_FILE_BYTES_MAX, err));
    enum status status = box_model_of(out, json, path, 0, err);
    json_decref(json);
    return status;
}
