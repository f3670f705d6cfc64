#include "engine/replay.h"

#include <errno.h>
#include <math.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "engine/box_files.h"
#include "engine/side_file.h"
#include "replay/link_scale.h"
#include "replay/report.h"
#include "replay/timeline.h"

/* What phasor's own traces begin with: another file is not replaced. */
#define TRACE_HEAD "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"phasor"

struct replay {
    struct recording recording;
    struct box_model *box; /* NULL: as recorded */
    struct simulation simulation;
    struct report report;
    struct report_subject subject;
    struct side_file trace;
};

static enum status check_params(const struct replay_params *params, struct error *err)
{
    if (params->recording_path == NULL || *params->recording_path == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "a recording is needed");
    if (params->box == NULL && (params->is_modelled || params->is_scaled))
        return error_set(err, STATUS_INVALID_ARGUMENT, "--%s needs a --box",
                         params->is_modelled ? "modelled" : "scale");
    if (params->link_scale != 0 &&
        (!params->is_scaled || !isfinite(params->link_scale) || params->link_scale < 0))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "link_scale: expected a number above 0, with scale; found %g",
                         params->link_scale);
    if (params->leaves_out_host && !params->is_modelled)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--without-host goes with --modelled: what is measured has its host");
    if (params->is_modelled && params->is_scaled)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--scale makes links as slow as the device that was recorded, whose times "
                         "--modelled does not use; give one of them");
    return STATUS_OK;
}

static enum status read_box(struct replay *replay, const char *name, struct error *err)
{
    struct text path = {0};
    enum status status = box_files_find(&path, name, err);
    if (status == STATUS_OK)
        status = memory_get((void **)&replay->box, 1, sizeof *replay->box, "a box", err);
    if (status == STATUS_OK)
        status = box_model_read(replay->box, path.bytes, err);
    text_deinit(&path);
    return status;
}

static enum status check_trace(struct replay *replay, const struct replay_params *params,
                               struct error *err)
{
    const char *const others[] = {params->recording_path};
    replay->trace =
        (struct side_file){.path = params->trace_path, .flag = "--trace", .head = TRACE_HEAD};
    return params->trace_path == NULL ? STATUS_OK : side_file_check(&replay->trace, others, 1, err);
}

static enum status write_trace(struct replay *replay, struct error *err)
{
    struct text text = {0};
    const struct log_sink silent = {.write = NULL};
    if (replay->trace.path == NULL)
        return STATUS_OK;
    timeline_write(&text, &replay->recording, &replay->simulation, report_label(&replay->subject));
    enum status status = text_check(&text, "a trace", err);
    if (status == STATUS_OK)
        side_file_write(&replay->trace, &text, &silent);
    text_deinit(&text);
    if (status == STATUS_OK && replay->trace.has_failed)
        status = error_set_errno(err, errno, "--trace: cannot write %s", replay->trace.path);
    return status;
}

static enum status simulate_all(struct replay *replay, const struct replay_params *params,
                                struct error *err)
{
    double scale = params->link_scale;
    if (params->is_scaled && scale == 0)
        TRY(link_scale_get(&scale, &replay->recording, replay->box, err));
    replay->subject = (struct report_subject){
        .recording = &replay->recording,
        .box = replay->box,
        .simulation = &replay->simulation,
        .durations = !params->is_modelled      ? DURATIONS_MEASURED
                     : params->leaves_out_host ? DURATIONS_DEVICES
                                               : DURATIONS_MODELLED,
        .link_scale = scale,
    };
    struct simulation_params simulation = {
        .recording = &replay->recording,
        .box = replay->box,
        .durations = replay->subject.durations,
        .link_scale = scale,
    };
    TRY(simulate(&replay->simulation, &simulation, err));
    return report_make(&replay->report, &replay->recording, &replay->simulation, err);
}

static enum status replay_all(char **out_json, struct replay *replay,
                              const struct replay_params *params, struct error *err)
{
    struct text json = {0};
    TRY(check_params(params, err));
    if (params->box != NULL)
        TRY(read_box(replay, params->box, err));
    TRY(check_trace(replay, params, err));
    TRY(recording_read(&replay->recording, params->recording_path, err));
    TRY(simulate_all(replay, params, err));
    TRY(write_trace(replay, err));
    report_write(&json, &replay->report, &replay->subject);
    enum status status = text_check(&json, "a report", err);
    if (status == STATUS_OK)
        *out_json = json.bytes;
    else
        text_deinit(&json);
    return status;
}

enum status replay_run(char **out_json, const struct replay_params *params, struct error *err)
{
    struct replay replay = {.box = NULL};
    enum status status = replay_all(out_json, &replay, params, err);
    report_deinit(&replay.report);
    simulation_deinit(&replay.simulation);
    memory_free(replay.box);
    recording_deinit(&replay.recording);
    return status;
}
