/* A file of random bytes, random reads of it, and whether a queue gives what is there. */
#ifndef TESTS_IO_READS_H
#define TESTS_IO_READS_H

#include "io/read_queue.h"

#define FILE_BYTES   ((size_t)3 * 1024 * 1024 + 777)
#define BUFFER_BYTES ((size_t)64 * 1024)
#define BUFFER_COUNT 8

/* The test's file, and what is in it. */
extern int file_fd;
extern char file_path[64];
extern unsigned char *file_bytes; /* [FILE_BYTES] */

void reads_init(void); /* of a test suite */
void reads_deinit(void);

/* A queue over the test's file. */
struct read_queue_params reads_params(enum read_backend backend, bool avoids_cache);
struct read_queue *reads_queue(const struct read_queue_params *params);

/* `count` random reads, half of them of whole pages, in as many buffers as there are: each comes
 * once, with its id, and with the file's bytes. The first failure ends it; what is in flight then
 * is given up. */
enum status reads_run(struct read_queue *queue, uint64_t seed, int count, struct error *err);

/* reads_run that must succeed, on a queue of its own, which is then destroyed. */
struct read_queue_use reads_expect(const char *label, const struct read_queue_params *params,
                                   int count);

/* What a call leaves behind. */
struct resources {
    uint64_t live_count;
    int descriptor; /* the lowest that is free */
};
struct resources resources_now(void);
void expect_resources(const char *label, struct resources before);

/* Whether the build has io_uring and the system lets this process use it, and a file of more than a
 * page O_DIRECT: asked of the system itself. */
bool uring_works(void);
bool direct_works(const char *path);

#endif
