/* A report as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "replay/report.h"

/* ---- Values ---------------------------------------------------------------------------------- */

static void put_seconds(struct json_writer *json, const char *key, double seconds)
{
    json_write_key(json, key);
    json_write_number(json, seconds);
}

static void put_count(struct json_writer *json, const char *key, uint64_t count)
{
    json_write_key(json, key);
    json_write_int(json, (int64_t)count);
}

static void put_string(struct json_writer *json, const char *key, const char *value)
{
    json_write_key(json, key);
    json_write_string(json, value);
}

static void open_under(struct json_writer *json, const char *key, char bracket)
{
    json_write_key(json, key);
    json_write_open(json, bracket);
}

/* `name` of a list, whoever made the recording. */
static void open_named(struct json_writer *json, char *const *names, uint32_t count, uint32_t name)
{
    const char *text = name < count ? names[name] : "?";
    json_write_key_text(json, text, strlen(text));
    json_write_open(json, '{');
}

/* ---- What it is of --------------------------------------------------------------------------- */

const char *report_label(const struct report_subject *subject)
{
    if (subject->box == NULL)
        return "as recorded";
    return subject->durations == DURATIONS_MEASURED ? "replay" : "modelled";
}

static void put_part(struct json_writer *json, const struct report *report)
{
    char note[160], whole[32] = "";
    if (report->rows_before == 0)
        return;
    if (report->rows >= report->rows_before)
        snprintf(whole, sizeof whole, "%" PRIu64 " ", report->rows);
    snprintf(note, sizeof note,
             "the recording is of a part of a run: an earlier one, which it resumed, had done "
             "%" PRIu64 " of its %srows",
             report->rows_before, whole);
    json_write_string(json, note);
}

static void put_notes(struct json_writer *json, const struct report *report,
                      const struct report_subject *subject)
{
    open_under(json, "notes", '[');
    put_part(json, report);
    if (subject->durations == DURATIONS_DEVICES)
        json_write_string(json, "what the host did takes no time");
    if (subject->link_scale > 0)
        json_write_string(json, "links are scaled to the speed of the device that was recorded: "
                                "times of prefill keep their proportions, those of decode are not "
                                "valid");
    json_write_close(json, ']');
}

/* What the recording says of itself is text from a file: it goes on as it was understood. */
static void put_about(struct json_writer *json, const struct recording *recording)
{
    json_t *about = NULL;
    char *text = NULL;
    if (recording->about != NULL &&
        json_parse_object(&about, recording->about, strlen(recording->about), "about", NULL) ==
            STATUS_OK)
        text = json_dumps(about, JSON_COMPACT);
    json_write_key(json, "about");
    text_append_string(json->out, text == NULL ? "{}" : text);
    json->needs_comma = true;
    free(text);
    json_decref(about);
}

static void put_subject(struct json_writer *json, const struct report *report,
                        const struct report_subject *subject)
{
    put_string(json, "label", report_label(subject));
    json_write_key(json, "partial");
    json_write_bool(json, report->rows_before > 0);
    put_notes(json, report, subject);
    put_string(json, "box", subject->box == NULL ? NULL : subject->box->name);
    put_string(json, "title", subject->box == NULL ? NULL : subject->box->title);
    if (subject->link_scale > 0)
        put_seconds(json, "link_scale", subject->link_scale);
    put_count(json, "ranks", (uint64_t)subject->recording->rank_count);
    put_about(json, subject->recording);
    put_seconds(json, "recorded_seconds", subject->recording->wall_seconds);
}

/* ---- Phases ---------------------------------------------------------------------------------- */

static void put_compute(struct json_writer *json, const struct report_phase *phase,
                        const struct recording *recording)
{
    open_under(json, "compute", '{');
    for (uint32_t s = 0; s < recording->stage_count; s++) {
        if (phase->compute_seconds[s] > 0) {
            open_named(json, recording->stage_names, recording->stage_count, s);
            put_seconds(json, "seconds", phase->compute_seconds[s]);
            json_write_close(json, '}');
        }
    }
    json_write_close(json, '}');
}

static void put_collectives(struct json_writer *json, const struct report_phase *phase,
                            const struct recording *recording)
{
    open_under(json, "collectives", '{');
    for (uint32_t t = 0; t < recording->tag_count; t++) {
        if (phase->collective_seconds[t] > 0 || phase->collective_bytes[t] > 0) {
            open_named(json, recording->tag_names, recording->tag_count, t);
            put_seconds(json, "seconds", phase->collective_seconds[t]);
            put_count(json, "bytes", phase->collective_bytes[t]);
            json_write_close(json, '}');
        }
    }
    json_write_close(json, '}');
}

static void put_phase(struct json_writer *json, const char *name, const struct report_phase *phase,
                      const struct recording *recording)
{
    open_under(json, name, '{');
    put_seconds(json, "wall_seconds", phase->wall_seconds);
    if (phase->tokens > 0) {
        put_count(json, "tokens", phase->tokens);
        if (phase->wall_seconds > 0)
            put_seconds(json, "tokens_per_second", (double)phase->tokens / phase->wall_seconds);
    }
    put_compute(json, phase, recording);
    put_collectives(json, phase, recording);
    put_seconds(json, "copy_seconds", phase->copy_seconds);
    open_under(json, "waits", '{');
    put_seconds(json, "others", phase->others_seconds);
    put_seconds(json, "transition", phase->transition_seconds);
    put_seconds(json, "rest", phase->wait_seconds);
    json_write_close(json, '}');
    put_seconds(json, "hidden_transition_seconds", phase->hidden_seconds);
    json_write_close(json, '}');
}

/* ---- The critical path ----------------------------------------------------------------------- */

static const char *const kind_names[PATH_KIND_COUNT] = {
    [PATH_COMPUTE] = "compute", [PATH_BESIDE] = "beside", [PATH_COLLECTIVE] = "collective",
    [PATH_COPY] = "copy",       [PATH_READ] = "read",     [PATH_HOST] = "host",
};

static void put_part_name(struct json_writer *json, const struct recording *recording,
                          enum path_kind kind, uint32_t name)
{
    bool is_collective = kind == PATH_COLLECTIVE;
    uint32_t count = is_collective ? recording->tag_count : recording->stage_count;
    char *const *names = is_collective ? recording->tag_names : recording->stage_names;
    bool is_named = (is_collective || kind == PATH_COMPUTE || kind == PATH_BESIDE) && name < count;
    put_string(json, "kind", kind_names[kind]);
    put_string(json, "name", is_named ? names[name] : NULL);
}

static void put_parts(struct json_writer *json, const struct report *report,
                      const struct recording *recording)
{
    open_under(json, "parts", '[');
    for (int i = 0; i < report->path_count; i++) {
        const struct path_part *part = &report->path[i];
        json_write_open(json, '{');
        put_part_name(json, recording, part->kind, part->name);
        put_seconds(json, "seconds", part->seconds);
        put_count(json, "count", part->count);
        json_write_close(json, '}');
    }
    json_write_close(json, ']');
}

static void put_step(struct json_writer *json, const struct path_step *step,
                     const struct report_subject *subject)
{
    const struct recording *recording = subject->recording;
    const struct recording_node *node = &recording->nodes[step->node];
    const struct recording_lane *lane = &recording->lanes[step->lane];
    json_write_open(json, '{');
    put_string(json, "name", recording->strings[node->name]);
    put_string(json, "lane", recording->strings[lane->name]);
    json_write_key(json, "rank");
    json_write_int(json, lane->rank);
    json_write_key(json, "layer");
    json_write_int(json, node->layer);
    put_seconds(json, "begin", subject->simulation->times[step->node].begin);
    put_seconds(json, "seconds", step->seconds);
    json_write_close(json, '}');
}

static void put_path(struct json_writer *json, const struct report *report,
                     const struct report_subject *subject)
{
    open_under(json, "critical_path", '{');
    put_parts(json, report, subject->recording);
    put_seconds(json, "gap_seconds", report->path_gap_seconds);
    open_under(json, "longest", '[');
    for (int i = 0; i < report->step_count; i++)
        put_step(json, &report->steps[i], subject);
    json_write_close(json, ']');
    json_write_close(json, '}');
}

/* ---- Links ----------------------------------------------------------------------------------- */

static void put_link(struct json_writer *json, const struct box_link *link,
                     const struct link_use *use, double seconds, double scale)
{
    double capacity = link->bytes_per_second * scale * seconds;
    int direction_count = link->is_half_duplex ? 1 : 2;
    json_write_open(json, '{');
    put_string(json, "name", link->name);
    put_seconds(json, "busy", seconds > 0 ? use->busy_seconds / seconds : 0);
    open_under(json, "bytes", '[');
    for (int i = 0; i < direction_count; i++)
        json_write_number(json, use->bytes[i]);
    json_write_close(json, ']');
    open_under(json, "used", '[');
    for (int i = 0; i < direction_count; i++)
        json_write_number(json, capacity > 0 ? use->bytes[i] / capacity : 0);
    json_write_close(json, ']');
    json_write_close(json, '}');
}

static void put_links(struct json_writer *json, const struct report_subject *subject)
{
    const struct box_model *box = subject->box;
    double scale = subject->link_scale > 0 ? subject->link_scale : 1;
    open_under(json, "links", '[');
    for (int i = 0; box != NULL && i < box->link_count; i++)
        put_link(json, &box->links[i], &subject->simulation->links[i], subject->simulation->seconds,
                 scale);
    json_write_close(json, ']');
}

void report_write(struct text *out, const struct report *report,
                  const struct report_subject *subject)
{
    static const struct {
        const char *name;
        enum record_phase phase;
    } phases[] = {
        {"prefill", RECORD_PREFILL}, {"decode", RECORD_DECODE}, {"between", RECORD_BETWEEN}};
    struct json_writer json = {.out = out};
    json_write_open(&json, '{');
    put_subject(&json, report, subject);
    put_seconds(&json, "seconds", report->seconds);
    open_under(&json, "phases", '{');
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        put_phase(&json, phases[i].name, &report->phases[phases[i].phase], subject->recording);
    json_write_close(&json, '}');
    put_path(&json, report, subject);
    put_links(&json, subject);
    json_write_close(&json, '}');
}
