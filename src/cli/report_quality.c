#include "report_quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_question.h"
#include "json_file.h"
#include "page.h"

#define MIB_MAX        1
#define IT_IS          "a file of bench_quantize"
#define NAME_BYTES_MAX 200

/* Of a scheme, as the file has them and as they are shown. */
static const struct column {
    const char *key, *words;
    int digits;
    bool is_share, is_change; /* in percent, of a ratio to 1 */
} columns[] = {
    {"bytes_per_weight", "bytes a weight", 4, false, false},
    {"cosine_min", "cosine, least", 5, false, false},
    {"cosine_mean", "mean", 5, false, false},
    {"nll_ratio", "NLL", 3, false, true},
    {"kl_mean", "mean KL", 6, false, false},
    {"same_top_1", "same top-1", 2, true, false},
};
#define COLUMNS (sizeof columns / sizeof *columns)

struct report_quality {
    json_t *root;
    const char *path;
};

/* ---- Reading --------------------------------------------------------------------------------- */

static bool is_name(const json_t *value)
{
    return json_is_string(value) && json_string_length(value) > 0 &&
           json_string_length(value) <= NAME_BYTES_MAX;
}

static bool is_number(const json_t *value)
{
    return json_is_number(value) && isfinite(json_number_value(value));
}

/* The key that is missing or wrong; NULL: none is. */
static const char *scheme_fault(const json_t *scheme)
{
    if (!is_name(json_object_get(scheme, "scheme")))
        return "scheme";
    for (size_t c = 0; c < COLUMNS; c++) {
        if (!is_number(json_object_get(scheme, columns[c].key)))
            return columns[c].key;
    }
    return NULL;
}

/* Decode as it runs; files of before have none. */
static const char *decode_fault(const json_t *decode)
{
    static const char *const numbers[] = {"native_nll", "nll_ratio", "kl_mean", "same_top_1"};
    if (decode == NULL)
        return NULL;
    if (!is_name(json_object_get(decode, "scheme")))
        return "scheme";
    if (!is_name(json_object_get(decode, "kernels")))
        return "kernels";
    if (!json_is_integer(json_object_get(decode, "windows")))
        return "windows";
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!is_number(json_object_get(decode, numbers[i])))
            return numbers[i];
    }
    return NULL;
}

static const char *fault_of(const json_t *root)
{
    const json_t *schemes = json_object_get(root, "schemes"), *scheme;
    const char *kind = json_string_value(json_object_get(root, "kind")), *fault;
    size_t i;
    if (kind == NULL || strcmp(kind, "quality") != 0)
        return "kind";
    if (!is_name(json_object_get(root, "model")))
        return "model";
    if (!is_name(json_object_get(root, "commit")))
        return "commit";
    if (!json_is_integer(json_object_get(root, "positions")))
        return "positions";
    if (!is_number(json_object_get(root, "native_nll")))
        return "native_nll";
    if (!json_is_array(schemes) || json_array_size(schemes) == 0)
        return "schemes";
    json_array_foreach(schemes, i, scheme)
    {
        fault = scheme_fault(scheme);
        if (fault != NULL)
            return fault;
    }
    return decode_fault(json_object_get(root, "decode"));
}

bool report_quality_open(struct report_quality **out, const char *path)
{
    struct report_quality *quality = calloc(1, sizeof *quality);
    *out = quality;
    if (quality == NULL) {
        fprintf(stderr, "phasor: out of memory for a page\n");
        return false;
    }
    quality->path = path;
    quality->root = json_file_read("--quality", path, IT_IS, MIB_MAX);
    if (quality->root == NULL)
        return false;
    const char *fault = fault_of(quality->root);
    if (fault != NULL)
        fprintf(stderr,
                "phasor: --quality: %s: \"%s\" is missing or not what it should be; it is to "
                "be " IT_IS "\n",
                path, fault);
    return fault == NULL;
}

void report_quality_close(struct report_quality *quality)
{
    if (quality == NULL)
        return;
    json_decref(quality->root);
    free(quality);
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_scheme(FILE *file, const json_t *scheme)
{
    fputs("<tr><td>", file);
    page_text(file, json_string_value(json_object_get(scheme, "scheme")));
    fputs("</td>", file);
    for (size_t c = 0; c < COLUMNS; c++) {
        const struct column *of = &columns[c];
        double value = json_number_value(json_object_get(scheme, of->key));
        if (of->is_change)
            fprintf(file, "<td class=\"n\">%+.*f %%</td>", of->digits, 100 * (value - 1));
        else if (of->is_share)
            fprintf(file, "<td class=\"n\">%.*f %%</td>", of->digits, 100 * value);
        else
            fprintf(file, "<td class=\"n\">%.*f</td>", of->digits, value);
    }
    fputs("</tr>\n", file);
}

static void made_put(FILE *file, const struct report_quality *quality)
{
    char *command = NULL;
    size_t length;
    FILE *words = open_memstream(&command, &length);
    if (words == NULL)
        return;
    fputs("bench_quantize ", words);
    bench_word_put(words, json_string_value(json_object_get(quality->root, "model")));
    fputc(' ', words);
    bench_word_put(words, quality->path);
    if (fclose(words) == 0)
        page_made(file, "computed", command);
    free(command);
}

static void put_decode(FILE *file, const json_t *decode)
{
    if (decode == NULL)
        return;
    fputs("<p>As decode runs, products with packed weights (", file);
    page_text(file, json_string_value(json_object_get(decode, "scheme")));
    fprintf(file, "), the next token of each of %lld windows in a step, by ",
            (long long)json_integer_value(json_object_get(decode, "windows")));
    page_text(file, json_string_value(json_object_get(decode, "kernels")));
    fprintf(file,
            ", beside native weights in bfloat16 (NLL %.4f): NLL %+.3f %%, mean KL %.6f, same "
            "top-1 %.2f %%.</p>\n",
            json_number_value(json_object_get(decode, "native_nll")),
            100 * (json_number_value(json_object_get(decode, "nll_ratio")) - 1),
            json_number_value(json_object_get(decode, "kl_mean")),
            100 * json_number_value(json_object_get(decode, "same_top_1")));
}

void report_put_quality(FILE *file, const struct report_quality *quality)
{
    const json_t *root = quality->root, *scheme;
    size_t i;
    fputs("<h2>What INT4 does to predictions</h2>\n", file);
    made_put(file, quality);
    fputs("<p>Experts rounded as a backup of each scheme "
          "has them, all else as it was, beside native weights in float32: ",
          file);
    page_text(file, json_string_value(json_object_get(root, "model")));
    fprintf(file, ", %lld positions, native NLL %.4f a token. By <code>bench_quantize</code> at ",
            (long long)json_integer_value(json_object_get(root, "positions")),
            json_number_value(json_object_get(root, "native_nll")));
    page_text(file, json_string_value(json_object_get(root, "commit")));
    fputs(". Plans that end in <code>:int4</code>, or change by <code>upload</code>, decode on "
          "such weights; all others on the checkpoint's own.</p>\n<div "
          "class=\"wide\"><table><tr><th>scheme</th>",
          file);
    for (size_t c = 0; c < COLUMNS; c++)
        fprintf(file, "<th class=\"n\">%s</th>", columns[c].words);
    fputs("</tr>\n", file);
    json_array_foreach(json_object_get(root, "schemes"), i, scheme) put_scheme(file, scheme);
    fputs("</table></div>\n", file);
    put_decode(file, json_object_get(root, "decode"));
}
