/* Runs files, and all files of folders, through a fuzz target: for compilers without libFuzzer, and
 * as the regression test of everything that fuzzing once found. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/file.h"
#include "fuzz.h"

#define INPUT_BYTES_MAX ((size_t)256 << 20)
/* Far above what any input of the corpus needs, even with sanitizers on a busy machine. */
#define INPUT_SECONDS_MAX 10.0

static int replay_file(const char *path)
{
    char *text;
    size_t length;
    struct error err;
    if (file_read_whole(&text, &length, path, INPUT_BYTES_MAX, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return -1;
    }
    /* From malloc and no longer than the input, so that a read past the end is found. */
    uint8_t *bytes = malloc(length == 0 ? 1 : length);
    FUZZ_CHECK(bytes != NULL);
    memcpy(bytes, text, length);
    memory_free(text);
    clock_t start = clock();
    LLVMFuzzerTestOneInput(bytes, length);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    free(bytes);
    if (seconds <= INPUT_SECONDS_MAX)
        return 1;
    fprintf(stderr, "%s took %.1f s\n", path, seconds);
    return -1;
}

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Number of inputs, or -1. */
static int replay(const char *path)
{
    struct stat about;
    struct dirent **entries;
    if (stat(path, &about) != 0) {
        perror(path);
        return -1;
    }
    if (!S_ISDIR(about.st_mode))
        return replay_file(path);
    int count = scandir(path, &entries, is_shown, alphasort);
    int done = 0;
    for (int i = 0; i < count; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        free(entries[i]);
        fprintf(stderr, "%s\n", name); /* the last line names the input that crashed */
        int result = done < 0 ? 0 : replay_file(name);
        done = result < 0 ? -1 : done + result;
    }
    if (count >= 0)
        free(entries);
    return count < 0 ? -1 : done;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int count = replay(argv[i]);
        if (count < 0)
            return 1;
        total += count;
    }
    if (total == 0) {
        fprintf(stderr, "no inputs: usage: %s FILE_OR_FOLDER...\n", argv[0]);
        return 2;
    }
    printf("%d inputs\n", total);
    return 0;
}
