#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/checkpoint.h"
#include "model/hub.h"
#include "model_tools.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define OTHER  "fedcba9876543210fedcba9876543210fedcba98"

static void clear_environment(void)
{
    static const char *const names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                        "XDG_CACHE_HOME", "HOME"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

static void make_path(const char *root, const char *beneath)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", root, beneath);
    for (char *at = path + strlen(root) + 1; *at != 0; at++) {
        if (*at != '/')
            continue;
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    mkdir(path, 0700);
}

/* CACHE/models--org--name with refs, blobs and a snapshot of links, as the hub's client makes it.
 */
static void make_cache(const char *cache)
{
    char entry[1024], name[2048], link[2048];
    snprintf(entry, sizeof entry, "%s/models--org--name", cache);
    make_path(cache, "models--org--name/refs/pr");
    make_path(cache, "models--org--name/snapshots/" COMMIT);
    make_path(cache, "models--org--name/snapshots/" OTHER);
    snprintf(name, sizeof name, "%s/blobs", entry);
    checkpoint_make(name, (struct synth_params){.preset = "tiny-mixtral", .dtype = DTYPE_BF16});
    static const char *const files[] = {"config.json", "generation_config.json",
                                        "model.safetensors"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s/snapshots/" COMMIT "/%s", entry, files[i]);
        snprintf(link, sizeof link, "../../blobs/%s", files[i]);
        cr_assert_eq(symlink(link, name), 0);
    }
    file_write_text(path_of(entry, "refs/main"), COMMIT);
    file_write_text(path_of(entry, "refs/pr/1"), COMMIT "\n");
    file_write_text(path_of(entry, "refs/evil"), "../../../etc");
    file_write_text(path_of(entry, "refs/stale"), "1111111111111111111111111111111111111111");
    file_write_text(path_of(entry, "refs/empty"), OTHER);
}

Test(hub, a_directory_is_itself)
{
    char *dir = temp_dir_make(), *out;
    struct error err;
    struct resources before = resources_now();
    cr_assert_eq(hub_resolve(&out, dir, NULL, &err), STATUS_OK);
    cr_expect_str_eq(out, dir);
    memory_free(out);
    expect_failure("revision", hub_resolve(&out, dir, "main", &err), &err, STATUS_INVALID_ARGUMENT,
                   "directory|revision (main)");
    file_write_text(path_of(dir, "x.gguf"), "x");
    expect_failure("file", hub_resolve(&out, path_of(dir, "x.gguf"), NULL, &err), &err,
                   STATUS_INVALID_ARGUMENT, "x.gguf is a file|directory that has config.json");
    expect_resources("directory", before);
    temp_dir_remove(dir);
}

Test(hub, finds_the_cache_in_order)
{
    char *root = temp_dir_make(), *out;
    struct error err;
    static const struct {
        const char *variable, *value, *cache;
    } places[] = {
        {"HOME", "home", "home/.cache/huggingface/hub"},
        {"XDG_CACHE_HOME", "xdg", "xdg/huggingface/hub"},
        {"HF_HOME", "hf", "hf/hub"},
        {"HUGGINGFACE_HUB_CACHE", "old", "old"},
        {"HF_HUB_CACHE", "new", "new"},
    };
    clear_environment();
    expect_failure("nothing set", hub_resolve(&out, "org/name", NULL, &err), &err, STATUS_NOT_FOUND,
                   "HF_HUB_CACHE|HF_HOME|HOME");
    /* each is set on top of those before it, and goes first */
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char cache[1024];
        setenv(places[i].variable, path_of(root, places[i].value), 1);
        snprintf(cache, sizeof cache, "%s/%s", root, places[i].cache);
        make_path(root, places[i].cache);
        expect_failure(places[i].variable, hub_resolve(&out, "org/name", NULL, &err), &err,
                       STATUS_NOT_FOUND, places[i].cache);
        make_cache(cache);
        enum status status = hub_resolve(&out, "org/name", NULL, &err);
        cr_assert_eq(status, STATUS_OK, "%s", status == STATUS_OK ? "" : err.message);
        cr_expect_eq(strncmp(out, cache, strlen(cache)), 0, "%s is not in %s", out, cache);
        memory_free(out);
    }
    setenv("HOME", root, 1);
    setenv("HF_HUB_CACHE", "~/new", 1);
    cr_assert_eq(hub_resolve(&out, "org/name", NULL, &err), STATUS_OK);
    memory_free(out);
    temp_dir_remove(root);
}

Test(hub, revisions_and_refusals)
{
    char *root = temp_dir_make(), *out;
    struct error err;
    clear_environment();
    setenv("HF_HUB_CACHE", root, 1);
    make_cache(root);
    static const struct {
        const char *model, *revision;
        enum status status;
        const char *fragments;
    } rows[] = {
        {"org/name", NULL, STATUS_OK, NULL},
        {"org/name", "main", STATUS_OK, NULL},
        {"org/name", COMMIT, STATUS_OK, NULL},
        {"org/name", "pr/1", STATUS_OK, NULL},
        {"org/other", NULL, STATUS_NOT_FOUND, "org/other|models--org--other|hf download org/other"},
        {"name", NULL, STATUS_NOT_FOUND, "models--name|hf download name"},
        {"org/name", "v2", STATUS_NOT_FOUND, "revision v2|--revision v2"},
        {"org/name", "stale", STATUS_NOT_FOUND, "org/name (revision stale)"},
        {"org/name", "empty", STATUS_NOT_FOUND, "no config.json|incomplete"},
        {"org/name", "evil", STATUS_FORMAT, "refs/evil|holds no commit"},
        {"org/name", "../../x", STATUS_INVALID_ARGUMENT, "../../x|no revision"},
        {"org/name", "", STATUS_INVALID_ARGUMENT, "no revision"},
        {"../name", NULL, STATUS_NOT_FOUND, "neither a directory nor an id"},
        {"org/name/x", NULL, STATUS_NOT_FOUND, "neither a directory nor an id"},
        {"/nowhere/at/all", NULL, STATUS_NOT_FOUND, "neither a directory nor an id"},
        {"org--name", NULL, STATUS_NOT_FOUND, "neither a directory nor an id"},
        {"", NULL, STATUS_NOT_FOUND, "neither a directory nor an id"},
    };
    struct resources before = resources_now();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum status status = hub_resolve(&out, rows[i].model, rows[i].revision, &err);
        if (rows[i].status != STATUS_OK)
            expect_failure(rows[i].fragments, status, &err, rows[i].status, rows[i].fragments);
        else
            cr_expect_eq(status, STATUS_OK, "%s", status == STATUS_OK ? "" : err.message);
        if (status == STATUS_OK) {
            cr_expect_not_null(strstr(out, "/snapshots/" COMMIT));
            memory_free(out);
        }
        expect_resources(rows[i].model, before);
    }
    temp_dir_remove(root);
}

/* The links of a snapshot into the blobs of its own entry load; other links do not. */
Test(hub, a_snapshot_loads)
{
    char *root = temp_dir_make(), *out;
    struct checkpoint *checkpoint;
    struct error err;
    clear_environment();
    setenv("HF_HUB_CACHE", root, 1);
    make_cache(root);
    cr_assert_eq(hub_resolve(&out, "org/name", NULL, &err), STATUS_OK);
    enum status status = checkpoint_open(&checkpoint, out, &err);
    cr_assert_eq(status, STATUS_OK, "%s", err.message);
    checkpoint_close(checkpoint);
    unlink(path_of(out, "model.safetensors"));
    file_write_text(path_of(root, "stray.safetensors"), "x");
    cr_assert_eq(symlink("../../../stray.safetensors", path_of(out, "model.safetensors")), 0);
    expect_failure("stray", checkpoint_open(&checkpoint, out, &err), &err, STATUS_FORMAT,
                   "model.safetensors|leads out");
    memory_free(out);
    temp_dir_remove(root);
}

Test(hub, fails_cleanly_when_memory_ends)
{
    char *root = temp_dir_make(), *out;
    clear_environment();
    setenv("HF_HUB_CACHE", root, 1);
    make_cache(root);
    struct resources before = resources_now();
    enum status status = STATUS_NO_MEMORY;
    uint64_t n = 1;
    for (; n < 100 && status != STATUS_OK; n++) {
        struct error err;
        memory_fail_at(n, 0);
        status = hub_resolve(&out, "org/name", NULL, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK)
            memory_free(out);
        else
            cr_expect_eq(status, STATUS_NO_MEMORY, "%s", err.message);
        expect_resources("n-th allocation", before);
    }
    cr_expect(status == STATUS_OK && n > 4);
    temp_dir_remove(root);
}
