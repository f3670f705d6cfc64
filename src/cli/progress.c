#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define TERMINAL_SECONDS 0.1
#define PLAIN_SECONDS    5.0
#define BAR_WIDTH_MAX    40
#define BAR_WIDTH_MIN    8
#define POINTS_KNOWN     16 /* that tell how long one takes */

double progress_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void progress_init(struct progress *progress, bool is_quiet, bool is_verbose)
{
    const char *terminal = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    bool is_dumb = terminal == NULL || strcmp(terminal, "dumb") == 0;
    *progress = (struct progress){.is_quiet = is_quiet, .is_verbose = is_verbose};
    progress->is_terminal = isatty(STDERR_FILENO) && !is_dumb;
    progress->has_color = progress->is_terminal && (no_color == NULL || *no_color == 0);
    progress_begin(progress);
}

void progress_begin(struct progress *progress)
{
    progress_erase(progress);
    progress->started_at = progress_now();
    progress->drawn_at = progress->started_at;
}

static bool is_time(struct progress *progress)
{
    double now = progress_now();
    double wait = progress->is_terminal ? TERMINAL_SECONDS : PLAIN_SECONDS;
    if (progress->is_quiet || now - progress->drawn_at < wait)
        return false;
    progress->drawn_at = now;
    return true;
}

static int terminal_width(void)
{
    struct winsize size;
    bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return is_known ? size.ws_col : 80;
}

/* "     |######------|": as wide as the terminal allows beside the rest, or nothing. */
static void format_bar(char *out, size_t capacity, double fraction, int width)
{
    *out = 0;
    if (width < BAR_WIDTH_MIN || (size_t)width + 3 > capacity)
        return;
    int filled = (int)(fraction * width + 0.5);
    out[0] = '|';
    for (int i = 0; i < width; i++)
        out[1 + i] = i < filled ? '#' : ' ';
    memcpy(out + 1 + width, "|", 2);
}

/* One line: "label:  42%|####    | rest". */
static void draw(struct progress *progress, const char *label, double fraction, const char *rest)
{
    int percent = (int)(fraction * 100);
    if (!progress->is_terminal) {
        fprintf(stderr, "%s: %3d%% %s\n", label, percent, rest);
        return;
    }
    char bar[BAR_WIDTH_MAX + 4], line[512];
    int columns = terminal_width();
    int left = columns - 1 - (int)strlen(label) - (int)strlen(rest) - 9;
    format_bar(bar, sizeof bar, fraction, left < BAR_WIDTH_MAX ? left : BAR_WIDTH_MAX);
    int length = snprintf(line, sizeof line, "%s: %3d%%%s %s", label, percent, bar, rest);
    if (length >= columns)
        length = columns - 1; /* a line that wraps cannot be erased */
    flockfile(stderr);
    fprintf(stderr, "\r%.*s\033[K", length, line);
    fflush(stderr);
    progress->is_drawn = true;
    funlockfile(stderr);
}

void progress_erase(struct progress *progress)
{
    flockfile(stderr);
    if (progress->is_drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    progress->is_drawn = false;
    funlockfile(stderr);
}

static double bounded_fraction(double done, double total)
{
    return total <= 0 || done <= 0 ? 0 : done >= total ? 1 : done / total;
}

void progress_bytes(struct progress *progress, const char *label, uint64_t done, uint64_t total)
{
    char rest[96];
    if (done < progress->done) /* of something else: a backup is made, and then weights are read */
        progress_begin(progress);
    progress->done = done;
    if (!is_time(progress))
        return;
    double elapsed = progress->drawn_at - progress->started_at;
    snprintf(rest, sizeof rest, "%.2f/%.2f GB, %.2f GB/s", (double)done / 1e9, (double)total / 1e9,
             elapsed > 0 ? (double)done / 1e9 / elapsed : 0);
    draw(progress, label, bounded_fraction((double)done, (double)total), rest);
}

/* 83 seconds as "01:23", 5000 as "1:23:20", and what is not known as "?". */
static void format_time(char *out, size_t capacity, double seconds)
{
    if (!(seconds >= 0 && seconds < 1e9)) {
        snprintf(out, capacity, "?");
        return;
    }
    long whole = (long)(seconds + 0.5);
    if (whole < 3600)
        snprintf(out, capacity, "%02ld:%02ld", whole / 60, whole % 60);
    else
        snprintf(out, capacity, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}

/* A table's points that turn out not to be needed are done at its end, together: those to come will
 * be as few. A table that ends without one of its own was found as an earlier calibration has left
 * it, and says nothing of the time. */
static void points_count(struct progress *progress, uint64_t done)
{
    uint64_t more = done - progress->done;
    if (more > 1 && progress->steps == 0)
        progress->found += more;
    progress->steps = more == 1 ? progress->steps + 1 : more > 1 ? 0 : progress->steps;
    progress->done = done;
}

void progress_points(struct progress *progress, const char *label, uint64_t done, uint64_t total,
                     const char *what)
{
    char rest[128], elapsed[32];
    if (!is_time(progress))
        return;
    format_time(elapsed, sizeof elapsed, progress->drawn_at - progress->started_at);
    snprintf(rest, sizeof rest, "[%s] %s", elapsed, what);
    draw(progress, label, bounded_fraction((double)done, (double)total), rest);
}

void progress_points_left(struct progress *progress, const char *label, uint64_t done,
                          uint64_t total, const char *what)
{
    char rest[128], elapsed[32], remaining[32];
    points_count(progress, done);
    if (!is_time(progress))
        return;
    double spent = progress->drawn_at - progress->started_at, left = NAN;
    if (done - progress->found >= POINTS_KNOWN && done < total)
        left = spent * (double)(total - done) / (double)(done - progress->found);
    format_time(elapsed, sizeof elapsed, spent);
    format_time(remaining, sizeof remaining, left);
    snprintf(rest, sizeof rest, "[%s<%s] %s", elapsed, remaining, what);
    draw(progress, label, bounded_fraction((double)done, (double)total), rest);
}

void progress_rows(struct progress *progress, const struct phasor_batch_progress *now)
{
    char elapsed[32], remaining[32], failed[40] = "", rest[256];
    if (!is_time(progress))
        return;
    format_time(elapsed, sizeof elapsed, now->elapsed_seconds);
    format_time(remaining, sizeof remaining, now->remaining_seconds);
    if (now->requests_failed > 0)
        snprintf(failed, sizeof failed, ", %llu failed", (unsigned long long)now->requests_failed);
    snprintf(rest, sizeof rest, "%llu/%llu [%s<%s, prefill %.0f tok/s, decode %.0f tok/s%s]",
             (unsigned long long)now->requests_done, (unsigned long long)now->requests_total,
             elapsed, remaining, now->prefill_tokens_per_second, now->decode_tokens_per_second,
             failed);
    draw(progress, "run", bounded_fraction((double)now->requests_done, (double)now->requests_total),
         rest);
}

/* Other threads warn, too: the lock of the stream is that of what is drawn on it. */
void progress_log(void *context, enum phasor_log_level level, const char *message)
{
    struct progress *progress = context;
    bool is_warning = level == PHASOR_LOG_WARNING;
    if (progress->is_quiet || (level == PHASOR_LOG_DEBUG && !progress->is_verbose))
        return;
    flockfile(stderr);
    progress_erase(progress);
    const char *before = progress->has_color && is_warning ? "\033[33m" : "";
    const char *after = *before != 0 ? "\033[0m" : "";
    fprintf(stderr, "%s%s:%s %s\n", before, is_warning ? "warning" : "note", after, message);
    funlockfile(stderr);
}
