/* Packed weights in a file: what a rank's memory holds once its weights are packed, as it lies
 * there, so that a later load maps the file, checks it against its sums, and packs nothing. Pages
 * that are read stay the page cache's, one copy for all processes; one that is written is the
 * rank's own from then on.
 *
 * The file is the cache's, written by phasor for this user and only ever replaced whole. So it is
 * mapped, which nothing else is that is read: whoever cuts it meanwhile, or a disk that fails
 * behind the check, ends the process (SIGBUS). Numbers are in this machine's order;
 * docs/weights-cache.md has the format. */
#ifndef PHASOR_STORE_PACKED_IMAGE_H
#define PHASOR_STORE_PACKED_IMAGE_H

#include "device/device.h"
#include "store/packed_read.h"

/* The beginning of a piece of a device's memory (memory_get). */
struct packed_part {
    void *memory;
    uint64_t bytes;
};

/* What an image is of. Another key or other sizes of parts are another image. */
#define PACKED_IMAGE_KEY_BYTES 512

struct packed_image {
    const char *path;
    const char *key; /* text of less than PACKED_IMAGE_KEY_BYTES */
    const struct packed_part *parts;
    size_t part_count;
};

/* Where the image of a key lies: in the cache (base/cache_folder.h), "packed/<digits>.weights".
 * `*out` is freed by memory_free. STATUS_NOT_FOUND when there is no such folder. */
enum status packed_image_path(char **out, const char *key, struct error *err) MUST_CHECK;

/* Whether such a device's memory can be that of a file. */
bool packed_image_is_possible(const struct device *device);

/* Maps the file to the parts and has the host's workers bring all of it to memory and check it.
 * `report` hears the bytes of the parts that are there, from several workers; its failure ends the
 * mapping, and is the answer. STATUS_NOT_FOUND: there is no file. STATUS_FORMAT, with the reason:
 * it is none that can be used (another key, cut, damaged, of another version). STATUS_IO: it cannot
 * be opened, read or mapped. Behind all of these the parts can be written as before, and hold
 * anything. STATUS_NO_MEMORY: they may be good for memory_free alone. */
enum status packed_image_map(const struct packed_image *image, struct device *device,
                             const struct packed_read_progress *report,
                             struct error *err) MUST_CHECK;

/* Whether the disk of such a file has room for so many bytes of all that are to be written, and
 * some beside them for others; STATUS_IO where it has not. Makes the folder. */
enum status packed_image_room(const char *path, uint64_t bytes, struct error *err) MUST_CHECK;

/* Writes the file from the parts, beside an old one, which it replaces when it is whole and on the
 * disk. On failure nothing is left, nor where the process is killed, if the folder's system has
 * files without a name. Makes the folder. Of a device whose memory the host reaches. */
enum status packed_image_write(const struct packed_image *image,
                               const struct packed_read_progress *report,
                               struct error *err) MUST_CHECK;

#endif
