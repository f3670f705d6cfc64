/* Where a backup lies when nobody says. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backup_tools.h"
#include "base/cache_folder.h"
#include "base/memory.h"
#include "quant/backup_path.h"

static const struct {
    const char *cache, *xdg, *home, *folder; /* NULL: it is refused */
} places[] = {
    {"/c", "/x", "/h", "/c"},
    {NULL, "/x", "/h", "/x/phasor"},
    {NULL, NULL, "/h", "/h/.cache/phasor"},
    {"", "", "/h", "/h/.cache/phasor"},
    {"relative", "also", "/h", "/h/.cache/phasor"},
    {NULL, NULL, NULL, NULL},
    {"relative", NULL, "", NULL},
};

static const struct {
    struct backup_settings settings;
    const char *name;
} names[] = {
    {{.group = 64}, "-group64.backup"},
    {{.group = 32, .is_asymmetric = true}, "-group32-asymmetric.backup"},
    {{.scheme = BACKUP_PER_CHANNEL, .has_zstd = true}, "-channel-zstd.backup"},
    {{.scheme = BACKUP_PER_TENSOR}, "-tensor.backup"},
};

static void set(const char *name, const char *value)
{
    if (value == NULL)
        unsetenv(name);
    else
        setenv(name, value, 1);
}

Test(backup_path, names_a_folder_the_checkpoint_and_the_settings)
{
    struct bench bench;
    bench_init(&bench, "tiny-mixtral", 1, false);
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            char *path, wanted[200], digits[FINGERPRINT_DIGITS + 1];
            struct error err;
            set("PHASOR_CACHE", places[p].cache);
            set("XDG_CACHE_HOME", places[p].xdg);
            set("HOME", places[p].home);
            enum status status =
                backup_path_in_cache(&path, bench.checkpoint, &names[n].settings, &err);
            if (places[p].folder == NULL) {
                expect_failure("no place", status, &err, STATUS_NOT_FOUND, "PHASOR_CACHE|--output");
                continue;
            }
            cr_assert_eq(status, STATUS_OK);
            fingerprint_format(digits, &bench.fingerprint);
            snprintf(wanted, sizeof wanted, "%s/%s%s", places[p].folder, digits, names[n].name);
            cr_assert_str_eq(path, wanted);
            memory_free(path);
        }
    }
    bench_deinit(&bench);
}

Test(backup_path, makes_the_folders_above)
{
    struct error err;
    struct stat about;
    char *folder = temp_dir_make();
    const char *path = path_of(folder, "a/b/file");
    for (int i = 0; i < 2; i++)
        cr_assert_eq(cache_folder_make_above(path, &err), STATUS_OK, "%s", err.message);
    cr_assert(stat(path_of(folder, "a/b"), &about) == 0 && S_ISDIR(about.st_mode));
    cr_assert_neq(stat(path, &about), 0);
    file_write_text(path, "");
    expect_failure("a file above", cache_folder_make_above(path_of(path, "x/y"), &err), &err,
                   STATUS_IO, "cannot make the folder");
    temp_dir_remove(folder);
}
