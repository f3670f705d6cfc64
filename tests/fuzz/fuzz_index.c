/* model.safetensors.index.json in a directory that also holds: a shard, a folder, a link to that
 * shard, and a link that leads out. Whatever the index names, no path outside may come of it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "model/model_path.h"
#include "model/shard_index.h"

static struct {
    char base[256];
    char dir[300]; /* base/snapshot */
    size_t dir_length;
    int fd; /* of the index */
} place;

static const char *in_dir(const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", place.dir, name);
    return path;
}

static void make_file(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    FUZZ_CHECK(fd >= 0);
    close(fd);
}

static void remove_place(void)
{
    static const char *const names[] = {SHARD_INDEX_NAME, "a.safetensors", "link", "out", "up"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(in_dir(names[i]));
    rmdir(in_dir("sub"));
    rmdir(place.dir);
    snprintf(place.dir, sizeof place.dir, "%s", place.base);
    unlink(in_dir("x.safetensors"));
    rmdir(place.base);
}

static void make_place(void)
{
    const char *folder = getenv("TMPDIR");
    char wanted[200];
    snprintf(wanted, sizeof wanted, "%s/phasor-fuzz-XXXXXX", folder != NULL ? folder : "/tmp");
    FUZZ_CHECK(mkdtemp(wanted) != NULL);
    char *real = realpath(wanted, NULL);
    FUZZ_CHECK(real != NULL && strlen(real) < sizeof place.base);
    snprintf(place.base, sizeof place.base, "%s", real);
    free(real);
    snprintf(place.dir, sizeof place.dir, "%s", place.base);
    make_file(in_dir("x.safetensors"));
    snprintf(place.dir, sizeof place.dir, "%s/snapshot", place.base);
    place.dir_length = strlen(place.dir);
    FUZZ_CHECK(mkdir(place.dir, 0700) == 0 && mkdir(in_dir("sub"), 0700) == 0);
    make_file(in_dir("a.safetensors"));
    FUZZ_CHECK(symlink("a.safetensors", in_dir("link")) == 0);
    FUZZ_CHECK(symlink("/etc/passwd", in_dir("out")) == 0);
    FUZZ_CHECK(symlink("../x.safetensors", in_dir("up")) == 0);
    place.fd = open(in_dir(SHARD_INDEX_NAME), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    FUZZ_CHECK(place.fd >= 0);
    atexit(remove_place);
}

static void check_resolve(const char *name)
{
    char *path = NULL;
    struct error err;
    enum status status = model_path_resolve(&path, place.dir, name, &err);
    if (status != STATUS_OK) {
        if (status != STATUS_IO) /* a name that is too long, for one */
            fuzz_check_error(status, &err);
        return;
    }
    FUZZ_CHECK(strncmp(path, place.dir, place.dir_length) == 0 && path[place.dir_length] == '/');
    FUZZ_CHECK(strstr(path, "/../") == NULL);
    memory_free(path);
}

static void check_accepted(const struct shard_index *index)
{
    const char *tensor;
    json_t *value;
    FUZZ_CHECK(index->shard_count > 0 && index->shard_count <= SHARDS_MAX);
    for (size_t i = 1; i < index->shard_count; i++)
        FUZZ_CHECK(strcmp(index->shard_names[i - 1], index->shard_names[i]) < 0);
    json_object_foreach(index->weight_map, tensor, value)
    {
        size_t i = 0;
        FUZZ_CHECK(json_is_string(value));
        while (i < index->shard_count &&
               strcmp(index->shard_names[i], json_string_value(value)) != 0)
            i++;
        FUZZ_CHECK(i < index->shard_count);
    }
    for (size_t i = 0; i < index->shard_count && i < 16; i++)
        check_resolve(index->shard_names[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct shard_index index = {0};
    struct error err;
    if (place.dir_length == 0)
        make_place();
    struct fuzz_account account = fuzz_begin(size);
    FUZZ_CHECK(ftruncate(place.fd, 0) == 0);
    FUZZ_CHECK(size == 0 || pwrite(place.fd, data, size, 0) == (ssize_t)size);
    enum status status = shard_index_load(&index, place.dir, &err);
    if (status == STATUS_OK)
        check_accepted(&index);
    else
        fuzz_check_error(status, &err);
    shard_index_deinit(&index);
    fuzz_end(&account);
    return 0;
}
