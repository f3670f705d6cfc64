/* Reading the model of a tokenizer.json. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "tokenizer/bpe.h"

struct side {
    const char *text;
    size_t length;
    int32_t id;
};

/* Merges are written as ["a", "b"], or in older files as "a b". */
static enum status read_pair(struct side *left, struct side *right, const json_t *entry,
                             size_t rank, const char *file, struct error *err)
{
    if (json_is_string(entry)) {
        const char *text = json_string_value(entry);
        size_t length = json_string_length(entry);
        const char *space = memchr(text, ' ', length);
        if (space != NULL && memchr(space + 1, ' ', length - (size_t)(space - text) - 1) == NULL) {
            *left = (struct side){.text = text, .length = (size_t)(space - text)};
            *right = (struct side){.text = space + 1, .length = length - left->length - 1};
            return STATUS_OK;
        }
    } else if (json_array_size(entry) == 2 && json_is_string(json_array_get(entry, 0)) &&
               json_is_string(json_array_get(entry, 1))) {
        const json_t *first = json_array_get(entry, 0), *second = json_array_get(entry, 1);
        *left =
            (struct side){.text = json_string_value(first), .length = json_string_length(first)};
        *right =
            (struct side){.text = json_string_value(second), .length = json_string_length(second)};
        return STATUS_OK;
    }
    return error_set(err, STATUS_FORMAT, "%s: merge %zu: expected two tokens, found %s", file, rank,
                     json_is_string(entry) ? json_string_value(entry) : json_kind(entry));
}

static enum status find_side(struct side *side, const struct vocab *vocab, size_t rank,
                             const char *file, struct error *err)
{
    side->id = vocab_find_model(vocab, side->text, side->length);
    if (side->id < 0)
        return error_set(err, STATUS_FORMAT, "%s: merge %zu names \"%s\", which is no token", file,
                         rank, side->text);
    return STATUS_OK;
}

static enum status find_result(int32_t *out, const struct vocab *vocab, const struct side *left,
                               const struct side *right, struct text *joined, size_t rank,
                               const char *file, struct error *err)
{
    text_clear(joined);
    text_append(joined, left->text, left->length);
    text_append(joined, right->text, right->length);
    TRY(text_check(joined, "a merge", err));
    *out = vocab_find_model(vocab, joined->bytes, joined->length);
    if (*out < 0)
        return error_set(err, STATUS_FORMAT, "%s: merge %zu makes \"%s\", which is no token", file,
                         rank, joined->bytes);
    return STATUS_OK;
}

/* A merge into a special token is left out: text must not become a control token. A pair that is
 * listed twice takes its later rank, as in the original. */
static enum status add_merge(struct bpe *bpe, const json_t *entry, size_t rank, struct text *joined,
                             const char *file, struct error *err)
{
    struct side left = {0}, right = {0};
    TRY(read_pair(&left, &right, entry, rank, file, err));
    TRY(find_side(&left, bpe->vocab, rank, file, err));
    TRY(find_side(&right, bpe->vocab, rank, file, err));
    int32_t result;
    TRY(find_result(&result, bpe->vocab, &left, &right, joined, rank, file, err));
    if (bpe->vocab->tokens[result].flags & TOKEN_SPECIAL)
        return STATUS_OK;
    uint64_t pair = bpe_pair(left.id, right.id);
    *bpe_merge_slot(bpe, pair) =
        (struct merge_slot){.pair = pair, .rank = (uint32_t)rank, .result = result};
    bpe->results[rank] = result;
    return STATUS_OK;
}

/* Very old files carry the first line of merges.txt along; it takes no rank. */
static bool is_version_line(const json_t *entry)
{
    return json_is_string(entry) && strncmp(json_string_value(entry), "#version", 8) == 0;
}

static enum status read_merges(struct bpe *bpe, const json_t *merges, const char *file,
                               struct error *err)
{
    if (!json_is_array(merges))
        return error_set(err, STATUS_FORMAT, "%s: \"model.merges\": expected an array, found %s",
                         file, json_kind(merges));
    size_t count = json_array_size(merges), slot_count = 64;
    while (slot_count < 2 * count)
        slot_count *= 2;
    void *memory;
    TRY(memory_get_raw(&memory, slot_count, sizeof *bpe->merges, "the merges", err));
    bpe->merges = memory;
    bpe->merge_mask = slot_count - 1;
    bpe->merge_seed = random_seed_make();
    for (size_t i = 0; i < slot_count; i++)
        bpe->merges[i].result = -1;
    TRY(memory_get(&memory, count, sizeof *bpe->results, "the merges", err));
    bpe->results = memory;

    struct text joined = {0};
    enum status status = STATUS_OK;
    for (size_t i = 0, rank = 0; i < count && status == STATUS_OK; i++) {
        const json_t *entry = json_array_get(merges, i);
        if (!is_version_line(entry))
            status = add_merge(bpe, entry, rank++, &joined, file, err);
    }
    text_deinit(&joined);
    return status;
}

static void fill_ids(struct bpe *bpe)
{
    for (uint32_t code_point = 0; code_point < BPE_LOW_CODE_POINTS; code_point++) {
        char bytes[4];
        size_t length = utf8_encode(bytes, code_point);
        bpe->low_ids[code_point] = vocab_find_plain(bpe->vocab, bytes, length);
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        int length = snprintf(name, sizeof name, "<0x%02X>", byte);
        bpe->byte_ids[byte] = vocab_find_plain(bpe->vocab, name, (size_t)length);
    }
}

enum status bpe_check_model(const json_t *model, const char *file, struct error *err)
{
    const char *type;
    TRY(json_get_string_or(&type, model, file, "type", "BPE", err));
    if (strcmp(type, "BPE") != 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: model \"%s\" is not supported; BPE is", file,
                         type);
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const char *affix;
        TRY(json_get_string_or(&affix, model, file, affixes[i], "", err));
        if (affix[0] != 0)
            return error_set(err, STATUS_UNSUPPORTED, "%s: BPE with %s \"%s\" is not supported",
                             file, affixes[i], affix);
    }
    double dropout;
    TRY(json_get_real_or(&dropout, model, file, "dropout", 0, 1, 0, err));
    if (dropout != 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: BPE with dropout %g is not supported", file,
                         dropout);
    return STATUS_OK;
}

enum status bpe_read(struct bpe *bpe, const struct vocab *vocab, const json_t *model,
                     const char *file, struct error *err)
{
    *bpe = (struct bpe){.vocab = vocab, .unknown_id = -1};
    TRY(json_get_bool_or(&bpe->byte_fallback, model, file, "byte_fallback", false, err));
    TRY(json_get_bool_or(&bpe->fuse_unknown, model, file, "fuse_unk", false, err));
    TRY(json_get_bool_or(&bpe->ignore_merges, model, file, "ignore_merges", false, err));
    const char *unknown;
    TRY(json_get_string_or(&unknown, model, file, "unk_token", NULL, err));
    if (unknown != NULL) {
        bpe->unknown_id = vocab_find_model(vocab, unknown, strlen(unknown));
        if (bpe->unknown_id < 0)
            return error_set(err, STATUS_FORMAT, "%s: \"unk_token\" \"%s\" is no token", file,
                             unknown);
    }
    fill_ids(bpe);
    return read_merges(bpe, json_object_get(model, "merges"), file, err);
}

void bpe_deinit(struct bpe *bpe)
{
    memory_free(bpe->merges);
    memory_free(bpe->results);
    *bpe = (struct bpe){0};
}
