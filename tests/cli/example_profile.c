/* Writes an example profile for the tests of the program: FILE RANKS [key=value ...]. The file
 * "cache" is where runs look for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cache_folder.h"
#include "base/memory.h"
#include "example_profile.h"

static bool set(struct example_profile *profile, const char *setting)
{
    const char *value = strchr(setting, '=');
    const struct {
        const char *key;
        double *place;
    } rates[] = {{"flops", &profile->flops_per_second}, {"bytes", &profile->bytes_per_second},
                 {"call", &profile->call_seconds},      {"gather", &profile->gather_rate},
                 {"exchange", &profile->exchange_rate}, {"disk", &profile->disk_rate},
                 {"check", &profile->check_rate}};
    const struct {
        const char *key;
        char *place;
    } names[] = {{"processor", profile->identity.processor},
                 {"kernels", profile->identity.kernels},
                 {"version", profile->identity.version}};
    if (value++ == NULL)
        return false;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        if (strncmp(setting, rates[i].key, strlen(rates[i].key)) == 0)
            *rates[i].place = strtod(value, NULL);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(setting, names[i].key, strlen(names[i].key)) == 0)
            snprintf(names[i].place, PROFILE_NAME_BYTES, "%s", value);
    }
    return true;
}

static enum status write_in_cache(const struct example_profile *profile, struct error *err)
{
    struct profile_identity here;
    char *path;
    TRY(profile_identity_of(&here, &profile->identity.devices, 0, err));
    TRY(profile_path_in_cache(&path, &here, err));
    enum status status = cache_folder_make_above(path, err);
    if (status == STATUS_OK && !example_profile_write(profile, path, err))
        status = err->status;
    memory_free(path);
    return status;
}

int main(int argc, char **argv)
{
    struct example_profile profile;
    struct error err;
    if (argc < 3)
        return 2;
    example_profile_init(&profile, atoi(argv[2]));
    for (int i = 3; i < argc; i++) {
        if (!set(&profile, argv[i]))
            return 2;
    }
    bool is_done = strcmp(argv[1], "cache") == 0 ? write_in_cache(&profile, &err) == STATUS_OK
                                                 : example_profile_write(&profile, argv[1], &err);
    if (is_done)
        return 0;
    fprintf(stderr, "%s\n", err.message);
    return 1;
}
