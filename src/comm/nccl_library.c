#define _GNU_SOURCE
#include "comm/nccl_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "libnccl.so.2"
#define CURE "PHASOR_NCCL=FILE names another one, PHASOR_NCCL=off goes by copies"

static struct {
    pthread_once_t once;
    enum status status;
    struct error error;
    struct nccl_library found;
} the = {.once = PTHREAD_ONCE_INIT};

/* ---- What is in it --------------------------------------------------------------------------- */

/* A function of it under its place in the struct. */
static const struct {
    const char *name;
    size_t place;
} symbols[] = {
    {"ncclGetVersion", offsetof(struct nccl_library, get_version)},
    {"ncclGetUniqueId", offsetof(struct nccl_library, get_id)},
    {"ncclCommInitRankConfig", offsetof(struct nccl_library, init)},
    {"ncclCommGetAsyncError", offsetof(struct nccl_library, async_error)},
    {"ncclCommFinalize", offsetof(struct nccl_library, finalize)},
    {"ncclCommDestroy", offsetof(struct nccl_library, destroy)},
    {"ncclCommAbort", offsetof(struct nccl_library, abort)},
    {"ncclGroupStart", offsetof(struct nccl_library, group_start)},
    {"ncclGroupEnd", offsetof(struct nccl_library, group_end)},
    {"ncclSend", offsetof(struct nccl_library, send)},
    {"ncclRecv", offsetof(struct nccl_library, receive)},
    {"ncclAllGather", offsetof(struct nccl_library, all_gather)},
    {"ncclGetErrorString", offsetof(struct nccl_library, error_text)},
    {"ncclGetLastError", offsetof(struct nccl_library, last_error)},
};
#define SYMBOL_COUNT (sizeof symbols / sizeof symbols[0])

static void version_text(char *out, size_t bytes, int version)
{
    /* Up to 2.8 it was counted in hundreds. */
    int unit = version < 10000 ? 1000 : 10000;
    snprintf(out, bytes, "%d.%d.%d", version / unit, version % unit / 100, version % 100);
}

/* The version first: of one that is too old, that is the reason, and not what it lacks. */
static enum status library_read(struct nccl_library *library, void *handle, struct error *err)
{
    char oldest[sizeof library->text];
    version_text(oldest, sizeof oldest, NCCL_OLDEST);
    for (size_t i = 0; i < SYMBOL_COUNT; i++) {
        void *symbol = dlsym(handle, symbols[i].name);
        if (symbol == NULL)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: expected NCCL %s or newer, found no %s in it; " CURE,
                             library->path, oldest, symbols[i].name);
        memcpy((char *)library + symbols[i].place, &symbol, sizeof symbol);
        if (i > 0)
            continue;
        if (library->get_version(&library->version) != NCCL_SUCCESS)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: expected NCCL %s or newer, found one that does not tell its "
                             "version; " CURE,
                             library->path, oldest);
        version_text(library->text, sizeof library->text, library->version);
        if (library->version < NCCL_OLDEST)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: expected NCCL %s or newer, found %s; " CURE, library->path,
                             oldest, library->text);
    }
    return STATUS_OK;
}

/* Its names stay its own: a program that links another NCCL keeps that one. */
static void *handle_open(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Closes it where it cannot be used. */
static enum status library_use(void *handle, const char *path, struct error *err)
{
    struct link_map *map = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != 0)
        path = map->l_name;
    snprintf(the.found.path, sizeof the.found.path, "%s", path);
    enum status status = library_read(&the.found, handle, err);
    if (status != STATUS_OK)
        dlclose(handle);
    return status;
}

static enum status library_open(const char *path, struct error *err)
{
    void *handle = handle_open(path);
    if (handle == NULL)
        return error_set(err, STATUS_UNSUPPORTED, "%s: expected NCCL, found no library: %s; " CURE,
                         path, dlerror());
    return library_use(handle, path, err);
}

/* ---- Where it is ----------------------------------------------------------------------------- */

/* The last that matches: names of later Pythons are sorted behind, but for 3.9 before 3.10. */
static bool glob_last(char out[PATH_MAX], const char *pattern)
{
    glob_t found;
    bool is_there = glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc > 0;
    if (is_there)
        snprintf(out, PATH_MAX, "%s", found.gl_pathv[found.gl_pathc - 1]);
    globfree(&found);
    return is_there;
}

bool nccl_library_in_packages(char out[PATH_MAX])
{
    const char *home = getenv("HOME"), *environment = getenv("VIRTUAL_ENV");
    char local[PATH_MAX] = "";
    if (home != NULL)
        snprintf(local, sizeof local, "%s/.local", home);
    const char *prefixes[] = {environment, local, "/usr/local", "/usr"};
    static const char *const folders[] = {"lib/python3.??", "lib/python3.?", "lib/python3"};
    static const char *const kinds[] = {"site-packages", "dist-packages"};
    for (int p = 0; p < 4; p++) {
        for (int f = 0; prefixes[p] != NULL && prefixes[p][0] != 0 && f < 6; f++) {
            char pattern[PATH_MAX];
            int length = snprintf(pattern, sizeof pattern, "%s/%s/%s/nvidia/nccl/lib/" NAME,
                                  prefixes[p], folders[f / 2], kinds[f % 2]);
            if (length < PATH_MAX && glob_last(out, pattern))
                return true;
        }
    }
    return false;
}

static enum status find_and_open(struct error *err)
{
    char path[PATH_MAX];
    const char *named = getenv("PHASOR_NCCL");
    if (named != NULL && strcmp(named, "off") == 0)
        return error_set(err, STATUS_NOT_FOUND, "NCCL is switched off by PHASOR_NCCL=off");
    if (named != NULL && named[0] != 0)
        return library_open(named, err);
    void *handle = handle_open(NAME);
    if (handle != NULL)
        return library_use(handle, NAME, err);
    if (nccl_library_in_packages(path))
        return library_open(path, err);
    return error_set(err, STATUS_NOT_FOUND,
                     "there is no " NAME ": NVIDIA's package libnccl2 or the Python package "
                     "nvidia-nccl-cu13 (cu12 for CUDA 12) has it, and PHASOR_NCCL=FILE names it");
}

static void get_once(void)
{
    the.status = find_and_open(&the.error);
}

enum status nccl_library_get(const struct nccl_library **out, struct error *err)
{
    pthread_once(&the.once, get_once);
    if (the.status == STATUS_OK)
        *out = &the.found;
    else if (err != NULL)
        *err = the.error;
    return the.status;
}
