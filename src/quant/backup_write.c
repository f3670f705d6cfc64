#include "quant/backup_write.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "device/thread_team.h"
#include "quant/backup_encode.h"
#include "quant/backup_part.h"

/* Sums over the weights of a granule: [matrix][product, before, after]. */
struct moments {
    double of[BACKUP_MATRICES][3];
};

struct worker {
    struct backup_encoder *encoder; /* writing */
    void *bytes, *scratch;          /* checking: [span], [content_bytes] */
    enum status status;
    struct error error;
};

/* What all threads do together: units are handed out in order. */
struct job {
    const struct backup_form *form;
    const struct backup_write_params *params;
    const struct model_config *config;
    struct backup_part *part;    /* writing */
    const struct backup *backup; /* checking */
    struct moments *moments;     /* [granule_count] */
    struct worker *workers;
    int worker_count;
    int64_t unit_granules, unit_count;
    int64_t unit_end; /* of what is handed out */
    atomic_int_fast64_t next_unit, units_done;
    int64_t whole_units; /* that an earlier run has left; guarded by `lock` */
    atomic_int failed;
    /* With zstd a unit's place is known when all before it have theirs. */
    pthread_mutex_t lock;
    pthread_cond_t placed;
    int64_t placed_units;
    enum status (*unit)(struct job *job, struct worker *worker, int64_t unit, struct error *err);
};

/* ---- The threads --------------------------------------------------------------------------- */

static uint64_t granule_weights(const struct backup_form *form)
{
    return BACKUP_MATRICES * (uint64_t)(form->granule_width * form->hidden_dim);
}

/* In bytes of bf16, whatever the checkpoint has. */
static enum status report_progress(struct job *job, struct error *err)
{
    uint64_t unit = 2 * granule_weights(job->form) * (uint64_t)job->unit_granules;
    if (job->params->progress == NULL)
        return STATUS_OK;
    enum status status = job->params->progress(job->params->progress_context,
                                               (uint64_t)atomic_load(&job->units_done) * unit,
                                               (uint64_t)job->unit_count * unit);
    if (status != STATUS_OK)
        return error_set(err, status, "stopped%s",
                         job->part != NULL ? "; the same command goes on from there" : "");
    return STATUS_OK;
}

static void fail(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    atomic_store(&job->failed, 1);
    pthread_cond_broadcast(&job->placed);
    pthread_mutex_unlock(&job->lock);
}

static void work(void *context, int index)
{
    struct job *job = context;
    struct worker *worker = &job->workers[index];
    int64_t unit;
    while (!atomic_load(&job->failed) &&
           (unit = (int64_t)atomic_fetch_add(&job->next_unit, 1)) < job->unit_end) {
        worker->status = job->unit(job, worker, unit, &worker->error);
        atomic_fetch_add(&job->units_done, 1);
        if (worker->status == STATUS_OK && index == 0)
            worker->status = report_progress(job, &worker->error);
        if (worker->status != STATUS_OK)
            fail(job);
    }
}

static enum status run_threads(struct job *job, struct error *err)
{
    struct thread_team *team;
    TRY(thread_team_create(&team, job->worker_count, -1, err));
    thread_team_run(team, work, job);
    thread_team_destroy(team);
    for (int w = 0; w < job->worker_count; w++) {
        if (job->workers[w].status != STATUS_OK) {
            if (err != NULL)
                *err = job->workers[w].error;
            return job->workers[w].status;
        }
    }
    return STATUS_OK;
}

static enum status job_init(struct job *job, struct error *err)
{
    int threads = job->params->thread_count;
    job->worker_count = threads > 0 ? threads : thread_team_cpu_count();
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->placed, NULL);
    TRY(memory_get((void **)&job->moments, (size_t)job->form->granule_count, sizeof *job->moments,
                   "the sums of all granules", err));
    return memory_get((void **)&job->workers, (size_t)job->worker_count, sizeof *job->workers,
                      "the threads", err);
}

static void check_buffers_drop(struct job *job)
{
    for (int w = 0; w < job->worker_count; w++) {
        memory_free(job->workers[w].bytes);
        memory_free(job->workers[w].scratch);
        job->workers[w].bytes = job->workers[w].scratch = NULL;
    }
}

/* Room for each thread to check granules in. */
static enum status check_buffers_get(struct job *job, int64_t span_max, struct error *err)
{
    for (int w = 0; w < job->worker_count; w++) {
        struct worker *worker = &job->workers[w];
        TRY(memory_get_raw(&worker->bytes, (size_t)span_max, 1, "a granule", err));
        if (job->form->settings.has_zstd)
            TRY(memory_get_raw(&worker->scratch, (size_t)job->form->content_bytes, 1, "a granule",
                               err));
    }
    return STATUS_OK;
}

static void job_deinit(struct job *job)
{
    if (job->workers != NULL)
        check_buffers_drop(job);
    for (int w = 0; job->workers != NULL && w < job->worker_count; w++)
        backup_encoder_destroy(job->workers[w].encoder);
    memory_free(job->workers);
    memory_free(job->moments);
    pthread_cond_destroy(&job->placed);
    pthread_mutex_destroy(&job->lock);
}

/* ---- The report ---------------------------------------------------------------------------- */

static void moments_set(struct moments *moments, int64_t number,
                        const struct backup_trailer *trailer)
{
    memcpy(&moments[number], trailer->moments, sizeof moments[number]);
}

static double cosine_of(const struct moments *parts, int64_t count, int matrix)
{
    double product = 0, before = 0, after = 0;
    for (int64_t i = 0; i < count; i++) {
        product += parts[i].of[matrix][0];
        before += parts[i].of[matrix][1];
        after += parts[i].of[matrix][2];
    }
    if (before == 0 && after == 0)
        return 1;
    return before > 0 && after > 0 ? product / sqrt(before * after) : 0;
}

static void report_make(struct backup_report *out, const struct backup_form *form,
                        const struct moments *moments, uint64_t file_bytes)
{
    double sum = 0, least = 1;
    uint64_t count = 0;
    for (int64_t first = 0; first < form->granule_count; first += form->parts) {
        for (int matrix = 0; matrix < BACKUP_MATRICES; matrix++, count++) {
            double cosine = cosine_of(moments + first, form->parts, matrix);
            sum += cosine;
            least = cosine < least ? cosine : least;
        }
    }
    *out = (struct backup_report){
        .file_bytes = file_bytes,
        .weight_count = (uint64_t)form->granule_count * granule_weights(form),
        .matrix_count = count,
        .cosine_min = least,
        .cosine_mean = count > 0 ? sum / (double)count : 1,
    };
}

/* STATUS_INVALID_ARGUMENT for what is no backup. */
static enum status check_magic(bool *is_there, const char *path, struct error *err)
{
    char magic[sizeof BACKUP_MAGIC - 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *is_there = fd >= 0;
    if (fd < 0)
        return errno == ENOENT ? STATUS_OK : error_set_errno(err, errno, "cannot open %s", path);
    struct stat about;
    bool is_file = fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
    ssize_t length = is_file ? pread(fd, magic, sizeof magic, 0) : 0;
    close(fd);
    if (length == sizeof magic && memcmp(magic, BACKUP_MAGIC, sizeof magic) == 0)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s is there and is no backup of phasor's: it is not replaced", path);
}

/* ---- What is there already ----------------------------------------------------------------- */

static enum status refuse_other(const char *path, struct error *err)
{
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s is there and is another backup, or a damaged one; --overwrite makes it "
                     "anew",
                     path);
}

/* The sums of a backup that is there, without reading the rest of it. */
static enum status trailers_read(struct backup_report *out, const struct backup *backup,
                                 struct error *err)
{
    const struct backup_form *form = backup_form(backup);
    struct moments *moments;
    enum status status;
    TRY(memory_get((void **)&moments, (size_t)form->granule_count, sizeof *moments,
                   "the sums of all granules", err));
    for (int64_t i = 0; i < form->granule_count; i++) {
        int64_t stored = backup_granule_stored(backup, i);
        struct backup_trailer trailer;
        TRY_GOTO(file_read_at(backup_fd(backup), backup_path(backup),
                              backup_granule_offset(backup, i) + (uint64_t)stored, &trailer,
                              sizeof trailer, err),
                 done);
        moments_set(moments, i, &trailer);
    }
    report_make(out, form, moments, backup_file_bytes(backup));
    out->bytes_found = out->file_bytes;
    status = STATUS_OK;
done:
    memory_free(moments);
    return status;
}

/* `*is_done` when the backup that is there is the one that is wanted. */
static enum status look_there(bool *is_done, struct backup_report *out,
                              const struct backup_write_params *params,
                              const struct backup_form *form, struct error *err)
{
    struct backup *backup;
    struct error found;
    bool is_there;
    *is_done = false;
    TRY(check_magic(&is_there, params->path, err));
    if (!is_there || params->overwrites)
        return STATUS_OK;
    enum status status = backup_open(&backup, params->path, &found);
    if (status == STATUS_FORMAT)
        return refuse_other(params->path, err);
    if (status != STATUS_OK) {
        if (err != NULL)
            *err = found;
        return status;
    }
    status = backup_form_is_same(backup_form(backup), form) ? trailers_read(out, backup, err)
                                                            : refuse_other(params->path, err);
    backup_close(backup);
    *is_done = status == STATUS_OK;
    return status;
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* The layer that is the n-th with experts. */
static int64_t nth_moe_layer(const struct model_config *config, int64_t n)
{
    int64_t layer = 0;
    while (config->layers[layer].ffn != FFN_MOE || n-- > 0)
        layer++;
    return layer;
}

/* A unit as it goes to the file. */
struct encoded {
    const void *bytes[BACKUP_PARTS_MAX];
    int64_t stored_bytes[BACKUP_PARTS_MAX];
    uint64_t offsets[BACKUP_PARTS_MAX];
};

/* STATUS_CANCELLED when another thread has failed. */
static enum status place(struct encoded *encoded, struct job *job, int64_t unit)
{
    pthread_mutex_lock(&job->lock);
    while (job->form->settings.has_zstd && job->placed_units != unit && !atomic_load(&job->failed))
        pthread_cond_wait(&job->placed, &job->lock);
    bool may = !atomic_load(&job->failed);
    for (int64_t i = 0; may && i < job->unit_granules; i++)
        encoded->offsets[i] =
            backup_part_place(job->part, unit * job->unit_granules + i, encoded->stored_bytes[i]);
    job->placed_units += may;
    pthread_cond_broadcast(&job->placed);
    pthread_mutex_unlock(&job->lock);
    return may ? STATUS_OK : STATUS_CANCELLED;
}

/* Compressed before it waits for its place: that is what takes long. */
static enum status unit_write(struct job *job, struct worker *worker, int64_t unit,
                              struct error *err)
{
    const struct backup_form *form = job->form;
    int64_t first = unit * job->unit_granules, expert = first / form->parts;
    int64_t layer = nth_moe_layer(job->config, expert / form->expert_count);
    struct encoded encoded;
    TRY(backup_encode(worker->encoder, layer, expert % form->expert_count, first % form->parts,
                      err));
    for (int64_t i = 0; i < job->unit_granules; i++)
        TRY(backup_encoded(&encoded.bytes[i], &encoded.stored_bytes[i], worker->encoder, i,
                           first + i, err));
    if (place(&encoded, job, unit) != STATUS_OK)
        return STATUS_OK; /* who failed tells why */
    for (int64_t i = 0; i < job->unit_granules; i++) {
        const char *bytes = encoded.bytes[i];
        struct backup_trailer trailer;
        TRY(backup_part_put(job->part, first + i, encoded.offsets[i], bytes,
                            encoded.stored_bytes[i], err));
        memcpy(&trailer, bytes + encoded.stored_bytes[i], sizeof trailer);
        moments_set(job->moments, first + i, &trailer);
    }
    return STATUS_OK;
}

/* ---- What an earlier run has left ----------------------------------------------------------- */

/* Behind a unit that is not whole none is looked at. */
static enum status unit_find(struct job *job, struct worker *worker, int64_t unit,
                             struct error *err)
{
    int64_t first = unit * job->unit_granules;
    (void)err;
    for (int64_t number = first; number < first + job->unit_granules; number++) {
        struct backup_trailer trailer;
        if (!backup_part_has(job->part, number, worker->bytes, worker->scratch, &trailer)) {
            pthread_mutex_lock(&job->lock);
            job->whole_units = unit < job->whole_units ? unit : job->whole_units;
            pthread_mutex_unlock(&job->lock);
            atomic_store(&job->next_unit, job->unit_end);
            return STATUS_OK;
        }
        moments_set(job->moments, number, &trailer);
    }
    return STATUS_OK;
}

/* Goes on behind the units that are whole. */
static enum status units_find(struct job *job, struct error *err)
{
    const struct backup_form *form = job->form;
    /* Of zstd's bound, see ZSTD_COMPRESSBOUND: content, a 256th, and a little. */
    int64_t span_max = backup_granule_span(form->content_bytes + form->content_bytes / 128 + 1024);
    job->whole_units = job->unit_end = backup_part_left(job->part) / job->unit_granules;
    job->unit = unit_find;
    if (job->unit_end > 0) {
        TRY(check_buffers_get(job, span_max, err));
        TRY(run_threads(job, err));
        check_buffers_drop(job);
    }
    backup_part_keep(job->part, job->whole_units * job->unit_granules);
    job->placed_units = job->whole_units;
    atomic_store(&job->next_unit, job->whole_units);
    atomic_store(&job->units_done, job->whole_units);
    return STATUS_OK;
}

static enum status job_write(struct job *job, const struct checkpoint *checkpoint,
                             struct backup_report *out, struct error *err)
{
    const struct backup_form *form = job->form;
    TRY(job_init(job, err));
    job->unit_granules = backup_encode_parts(form);
    job->unit_count = form->granule_count / job->unit_granules;
    TRY(units_find(job, err));
    uint64_t found = (uint64_t)job->whole_units;
    job->unit = unit_write;
    job->unit_end = job->unit_count;
    for (int w = 0; w < job->worker_count; w++)
        TRY(backup_encoder_create(&job->workers[w].encoder, form, checkpoint, err));
    TRY(report_progress(job, err));
    TRY(run_threads(job, err));
    bool is_same; /* what has come since the beginning is not replaced, either, but by its like */
    TRY(look_there(&is_same, out, job->params, form, err));
    TRY(backup_part_finish(job->part, err));
    uint64_t end = job->part->index != NULL
                       ? job->part->end
                       : (uint64_t)(form->data_offset +
                                    form->granule_count * backup_granule_span(form->content_bytes));
    report_make(out, form, job->moments, end);
    out->bytes_found = job->unit_count == 0 ? 0 : end * found / (uint64_t)job->unit_count;
    return STATUS_OK;
}

/* ---- The whole ------------------------------------------------------------------------------ */

/* A link stays: the file behind it is made, and what is unfinished lies beside that. */
static enum status resolve(char out[PATH_MAX], const char *path, struct error *err)
{
    if (file_resolve(out, path))
        return STATUS_OK;
    if (file_is_dangling(path))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s is a link to a file that is not there; remove it, or choose another "
                         "name",
                         path);
    return error_set_errno(err, errno, "cannot open %s", path);
}

static enum status write_anew(struct backup_report *out, const struct checkpoint *checkpoint,
                              const struct backup_write_params *params,
                              const struct backup_form *form, struct error *err)
{
    struct backup_part part;
    TRY(backup_part_open(&part, params->path, form, err));
    struct job job = {
        .form = form, .params = params, .config = checkpoint_config(checkpoint), .part = &part};
    enum status status = job_write(&job, checkpoint, out, err);
    job_deinit(&job);
    backup_part_close(&part);
    return status;
}

enum status backup_write(struct backup_report *out, const struct checkpoint *checkpoint,
                         const struct backup_write_params *given, struct error *err)
{
    struct backup_write_params params = *given;
    char path[PATH_MAX];
    struct fingerprint fingerprint;
    struct backup_form form;
    bool is_done;
    params.path = path;
    TRY(resolve(path, given->path, err));
    TRY(fingerprint_weights(&fingerprint, checkpoint, err));
    TRY(backup_form_make(&form, &params.settings, checkpoint_config(checkpoint), &fingerprint,
                         err));
    TRY(look_there(&is_done, out, &params, &form, err));
    return is_done ? STATUS_OK : write_anew(out, checkpoint, &params, &form, err);
}

/* ---- Checking ------------------------------------------------------------------------------ */

static enum status unit_verify(struct job *job, struct worker *worker, int64_t unit,
                               struct error *err)
{
    const void *content;
    TRY(backup_granule_read(&content, job->backup, unit, worker->bytes, worker->scratch, err));
    struct backup_trailer trailer = backup_granule_trailer(job->backup, unit, worker->bytes);
    moments_set(job->moments, unit, &trailer);
    return STATUS_OK;
}

static enum status job_verify(struct job *job, struct backup_report *out, struct error *err)
{
    TRY(job_init(job, err));
    TRY(check_buffers_get(job, backup_granule_bytes_max(job->backup), err));
    job->unit_granules = 1;
    job->unit_count = job->unit_end = job->form->granule_count;
    job->unit = unit_verify;
    TRY(run_threads(job, err));
    report_make(out, job->form, job->moments, backup_file_bytes(job->backup));
    out->bytes_found = out->file_bytes;
    return STATUS_OK;
}

enum status backup_verify(struct backup_report *out, const struct checkpoint *checkpoint,
                          const struct backup_write_params *params, struct error *err)
{
    struct fingerprint fingerprint;
    struct backup *backup;
    TRY(fingerprint_weights(&fingerprint, checkpoint, err));
    TRY(backup_open(&backup, params->path, err));
    struct job job = {.form = backup_form(backup), .params = params, .backup = backup};
    enum status status = backup_match(backup, checkpoint_config(checkpoint), &fingerprint, err);
    if (status == STATUS_OK) {
        status = job_verify(&job, out, err);
        job_deinit(&job);
    }
    backup_close(backup);
    return status;
}
