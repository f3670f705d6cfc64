/* Which box a profile is of, and where it lies. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/cache_folder.h"
#include "comm/box.h"
#include "device/thread_team.h"
#include "engine/profile_file.h"
#include "phasor.h"

/* What stands behind "model name : " of the first processor, without spaces at the end. */
static void processor_name(char out[PROFILE_NAME_BYTES])
{
    char line[512], name[PROFILE_NAME_BYTES];
    FILE *file = fopen("/proc/cpuinfo", "re");
    out[0] = 0;
    if (file == NULL)
        return;
    while (out[0] == 0 && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "model name : %127[^\n]", name) == 1 && utf8_is_valid(name, strlen(name)))
            snprintf(out, PROFILE_NAME_BYTES, "%s", name);
    }
    fclose(file);
}

void profile_identity_here(struct profile_identity *out, const char *kernels, int ranks,
                           int thread_count)
{
    int cores = thread_team_cpu_count();
    int threads = thread_count > 0 ? thread_count : cores;
    *out = (struct profile_identity){
        .cores = cores, .ranks = ranks, .threads = threads < ranks ? ranks : threads};
    processor_name(out->processor);
    snprintf(out->kernels, sizeof out->kernels, "%s", kernels);
    snprintf(out->version, sizeof out->version, "%s", PHASOR_VERSION);
}

enum status profile_identity_of_cpu(struct profile_identity *out, int ranks, int thread_count,
                                    struct error *err)
{
    struct box *box;
    TRY(box_open(&box, &(struct box_params){.rank_count = 1, .thread_count = 1}, err));
    profile_identity_here(out, box_device(box, 0)->ops->name, ranks, thread_count);
    box_close(box);
    return STATUS_OK;
}

enum status profile_path_in_cache(char **out, const struct profile_identity *here,
                                  struct error *err)
{
    struct text path = {0};
    char machine[PROFILE_NAME_BYTES + 32];
    int length = snprintf(machine, sizeof machine, "%s, %d cores, %d threads", here->processor,
                          here->cores, here->threads);
    TRY(cache_folder_append(&path, "the profile", err));
    text_append_format(&path, "/profile-cpu%d-%016" PRIx64 ".json", here->ranks,
                       (uint64_t)XXH3_64bits(machine, (size_t)length));
    enum status status = text_check(&path, "the path of a profile", err);
    if (status == STATUS_OK)
        *out = path.bytes;
    else
        text_deinit(&path);
    return status;
}

/* ---- Whether it is the same ------------------------------------------------------------------ */

static bool names_differ(const char *what, const char *file, const char *here, struct error *err)
{
    if (strcmp(file, here) == 0)
        return false;
    error_set(err, STATUS_UNSUPPORTED, "it was measured with the %s \"%s\", here it is \"%s\"",
              what, file, here);
    return true;
}

static bool counts_differ(const char *what, int file, int here, struct error *err)
{
    if (file == here)
        return false;
    error_set(err, STATUS_UNSUPPORTED, "it was measured with %d %s, here there are %d", file, what,
              here);
    return true;
}

enum profile_fit profile_identity_fit(const struct profile_identity *file,
                                      const struct profile_identity *here, struct error *difference)
{
    if (names_differ("processor", file->processor, here->processor, difference) ||
        counts_differ("cores", file->cores, here->cores, difference) ||
        counts_differ("ranks", file->ranks, here->ranks, difference) ||
        counts_differ("threads", file->threads, here->threads, difference))
        return PROFILE_FOREIGN;
    if (names_differ("kernels", file->kernels, here->kernels, difference) ||
        names_differ("version of phasor", file->version, here->version, difference))
        return PROFILE_STALE;
    return PROFILE_FITS;
}
