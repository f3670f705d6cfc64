#include "run_summary.h"

#include <stdio.h>
#include <string.h>

#include "table.h"

#define KINDS_SHOWN 3
#define RANKS_SHOWN 4

static double ratio(double count, double of)
{
    return of > 0 ? count / of : 0;
}

/* ---- Rows and tokens ----------------------------------------------------------------------- */

static const char *row_word(uint64_t count)
{
    return count == 1 ? "row" : "rows";
}

static void print_rows(const struct phasor_batch_result *result)
{
    uint64_t before = result->completed_before + result->failed_before;
    uint64_t done = before + result->completed + result->failed;
    fprintf(stderr, "%llu %s: %llu completed, %llu failed", (unsigned long long)result->total,
            row_word(result->total), (unsigned long long)result->completed,
            (unsigned long long)result->failed);
    if (before > 0)
        fprintf(stderr, ", %llu done before (%llu failed)", (unsigned long long)before,
                (unsigned long long)result->failed_before);
    if (result->total > done)
        fprintf(stderr, ", %llu not run", (unsigned long long)(result->total - done));
    fprintf(stderr, "; %.2f s\n", result->elapsed_seconds);
}

static void print_rates(const struct phasor_batch_result *result)
{
    double input = (double)result->prompt_tokens, output = (double)result->completion_tokens;
    double rows = (double)result->completed, seconds = result->elapsed_seconds;
    fprintf(stderr,
            "%llu prompt tokens (prefill %.1f tok/s), %llu completion tokens (decode %.1f "
            "tok/s)\n",
            (unsigned long long)result->prompt_tokens,
            ratio((double)result->prefill_tokens, result->prefill_seconds),
            (unsigned long long)result->completion_tokens,
            ratio((double)result->decode_tokens, result->decode_seconds));
    if (result->completed == 0)
        return;
    fprintf(stderr,
            "request_throughput %.2f rows/s, output_throughput %.1f tok/s, "
            "total_token_throughput %.1f tok/s\n",
            ratio(rows, seconds), ratio(output, seconds), ratio(input + output, seconds));
    fprintf(stderr, "mean input %.1f tokens, mean output %.1f tokens a row\n", input / rows,
            output / rows);
}

/* ---- Stages -------------------------------------------------------------------------------- */

/* The stages of a phase that took a hundredth of it or more, the longest first, and how fast they
 * read weights where that tells something. */
static void print_phase_stages(const char *phase, const double *seconds, const uint64_t *bytes,
                               double total)
{
    double left[PHASOR_STAGE_COUNT];
    if (total <= 0)
        return;
    memcpy(left, seconds, sizeof left);
    fprintf(stderr, "%s:", phase);
    for (const char *comma = " ";; comma = ", ") {
        int longest = 0;
        for (int stage = 1; stage < PHASOR_STAGE_COUNT; stage++) {
            if (left[stage] > left[longest])
                longest = stage;
        }
        if (left[longest] < total / 100)
            break;
        fprintf(stderr, "%s%s %.0f %%", comma, phasor_stage_name(longest),
                100 * left[longest] / total);
        if (bytes != NULL && bytes[longest] > 0)
            fprintf(stderr, " (%.1f GB/s)", (double)bytes[longest] / left[longest] * 1e-9);
        left[longest] = 0;
    }
    fputc('\n', stderr);
}

static void print_stages(const struct phasor_batch_result *result)
{
    print_phase_stages("prefill", result->prefill_stage_seconds, NULL, result->prefill_seconds);
    print_phase_stages("decode", result->decode_stage_seconds, result->decode_weight_bytes,
                       result->decode_seconds);
}

/* "predicted prefill 1.20 s (measured 1.31 s), decode ...": a plan's, against the clock. */
static void print_prediction(const struct phasor_batch_result *result)
{
    if (!result->has_prediction)
        return;
    fprintf(stderr, "predicted prefill %s (measured %s, %.2fx), decode %s (measured %s, %.2fx)",
            TABLE_SECONDS(result->predicted_prefill_seconds),
            TABLE_SECONDS(result->prefill_seconds),
            ratio(result->prefill_seconds, result->predicted_prefill_seconds),
            TABLE_SECONDS(result->predicted_decode_seconds), TABLE_SECONDS(result->decode_seconds),
            ratio(result->decode_seconds, result->predicted_decode_seconds));
    if (result->predicted_between_seconds > 0)
        fprintf(stderr, ", between %s (measured %s)",
                TABLE_SECONDS(result->predicted_between_seconds),
                TABLE_SECONDS(result->transition_seconds));
    if (result->predicted_plan_change_seconds > 0)
        fprintf(stderr, ", weights loaded between plans %s (measured %s)",
                TABLE_SECONDS(result->predicted_plan_change_seconds),
                TABLE_SECONDS(result->plan_change_seconds));
    fputc('\n', stderr);
}

/* ---- Times --------------------------------------------------------------------------------- */

static void print_times(const struct phasor_batch_result *result)
{
    const struct {
        const char *name;
        const struct phasor_latency *times;
    } lines[] = {{"TTFT", &result->ttft},
                 {"TPOT", &result->tpot},
                 {"ITL", &result->itl},
                 {"E2EL", &result->e2el}};
    if (result->e2el.count == 0)
        return;
    fprintf(stderr, "%-4s %12s %12s %12s\n", "ms", "mean", "median", "p99");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const struct phasor_latency *times = lines[i].times;
        if (times->count > 0)
            fprintf(stderr, "%-4s %12.2f %12.2f %12.2f\n", lines[i].name, times->mean_seconds * 1e3,
                    times->median_seconds * 1e3, times->p99_seconds * 1e3);
    }
}

/* ---- Ranks --------------------------------------------------------------------------------- */

static void print_bytes(const char *before, const char *name, uint64_t bytes)
{
    char text[32];
    table_format_bytes(text, sizeof text, (double)bytes);
    fprintf(stderr, "%s%s %s", before, name, text);
}

/* The largest kind that is not shown yet; -1: there is none. */
static int largest_kind(const uint64_t bytes[PHASOR_COLLECTIVE_COUNT])
{
    int largest = 0;
    for (int kind = 1; kind < PHASOR_COLLECTIVE_COUNT; kind++) {
        if (bytes[kind] > bytes[largest])
            largest = kind;
    }
    return bytes[largest] > 0 ? largest : -1;
}

static void print_collectives(const struct phasor_batch_result *result)
{
    uint64_t left[PHASOR_COLLECTIVE_COUNT], total = 0;
    for (int kind = 0; kind < PHASOR_COLLECTIVE_COUNT; kind++)
        total += left[kind] = result->collective_bytes[kind];
    if (total == 0)
        return;
    print_bytes("", "collectives", total);
    for (int shown = 0; shown < KINDS_SHOWN; shown++) {
        int kind = largest_kind(left);
        if (kind < 0)
            break;
        print_bytes(shown == 0 ? ": " : ", ", phasor_collective_name(kind), left[kind]);
        total -= left[kind];
        left[kind] = 0;
    }
    if (total > 0)
        print_bytes(", ", "others", total);
    fputc('\n', stderr);
}

static void print_transitions(const struct phasor_batch_result *result)
{
    if (result->transitions > 0)
        fprintf(stderr, "%llu change%s of the experts' layout: %.3f s between passes\n",
                (unsigned long long)result->transitions, result->transitions == 1 ? "" : "s",
                result->transition_seconds);
}

static void print_plan_changes(const struct phasor_batch_result *result)
{
    if (result->plan_changes > 0)
        fprintf(stderr, "%llu change%s of plan: %.3f s in which weights were loaded anew\n",
                (unsigned long long)result->plan_changes, result->plan_changes == 1 ? "" : "s",
                result->plan_change_seconds);
}

static void print_memory(const struct phasor_batch_result *result)
{
    int largest = 0;
    for (int r = 1; r < result->rank_count; r++) {
        if (result->rank_peak_bytes[r] > result->rank_peak_bytes[largest])
            largest = r;
    }
    if (result->rank_count == 0)
        return;
    print_bytes("", "peak memory", result->peak_bytes);
    for (int r = 0; r < result->rank_count && result->rank_count <= RANKS_SHOWN; r++) {
        char name[32];
        snprintf(name, sizeof name, "rank %d", r);
        print_bytes(r == 0 ? ": " : ", ", name, result->rank_peak_bytes[r]);
    }
    if (result->rank_count > RANKS_SHOWN) {
        print_bytes(": ", "at most", result->rank_peak_bytes[largest]);
        fprintf(stderr, " on each of %d ranks (rank %d)", result->rank_count, largest);
    }
    print_bytes("; ", "KV cache", result->kv_bytes);
    print_bytes(", ", "at most", result->kv_taken_bytes);
    fputs(" of it set aside for rows\n", stderr);
}

static void print_errors(const struct phasor_batch_result *result, const char *errors)
{
    if (result->failed + result->failed_before > 0 && strcmp(errors, "-") != 0)
        fprintf(stderr, "why rows failed stands in %s\n", errors);
}

void run_summary_print(const struct phasor_batch_result *result, const char *errors)
{
    uint64_t before = result->completed_before + result->failed_before;
    if (result->total > 0 && before == result->total) {
        fprintf(stderr, "%llu %s: the run is finished already (%llu completed, %llu failed)\n",
                (unsigned long long)result->total, row_word(result->total),
                (unsigned long long)result->completed_before,
                (unsigned long long)result->failed_before);
        print_errors(result, errors);
        return;
    }
    print_rows(result);
    print_errors(result, errors);
    print_rates(result);
    print_prediction(result);
    print_stages(result);
    print_transitions(result);
    print_plan_changes(result);
    print_times(result);
    print_collectives(result);
    print_memory(result);
}
