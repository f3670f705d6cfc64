/* What the tests of src/model share: directories that vanish, files made by hand, and checks of
 * failures. JSON is written with ' for ". */
#ifndef TESTS_MODEL_MODEL_TOOLS_H
#define TESTS_MODEL_MODEL_TOOLS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/synth.h"

/* A fresh directory; removed with everything in it by temp_dir_remove (which also frees it). */
char *temp_dir_make(void);
void temp_dir_remove(char *dir);

/* "a/b" in static memory; eight results live at a time. */
const char *path_of(const char *a, const char *b);

void file_write(const char *path, const void *bytes, size_t length);
void file_write_text(const char *path, const char *text);
/* malloc'ed, with a NUL behind. */
char *file_read(const char *path, size_t *length);
int64_t file_size(const char *path);

/* Finds `anchor` in the file, then `from` behind it, and writes `to` (of the same length) there. */
void file_patch(const char *path, const char *anchor, const char *from, const char *to);

/* Parses JSON with ' for ". */
json_t *json_of(const char *text);
/* `base` with the members of `changes` put in; the value "$delete" removes a member. */
json_t *json_changed(const char *base, const char *changes);
/* Applies such changes to a JSON file. */
void json_file_change(const char *path, const char *changes);

/* A safetensors file made by hand: length word (0: that of the header), header, zeros as data. */
void safetensors_file(const char *path, uint64_t length_word, const char *header,
                      size_t data_bytes);

/* A synthetic checkpoint under dir/name. */
void checkpoint_make(const char *dir, struct synth_params params);

/* The call failed with that status, and its sentence has all the fragments (separated by '|'). */
void expect_failure(const char *label, enum status status, const struct error *err,
                    enum status wanted, const char *fragments);

/* Nothing is left over: phasor's memory and open files. */
struct resources {
    uint64_t live_count;
    int fd_count;
};
struct resources resources_now(void);
void expect_resources(const char *label, struct resources before);

#endif
