/* The weights of a rank as an image in the cache (store/packed_image.h): which one is whose, and
 * what of a rank's memory is in it. */
#ifndef PHASOR_EXEC_WEIGHTS_IMAGE_H
#define PHASOR_EXEC_WEIGHTS_IMAGE_H

#include "exec/weights.h"
#include "model/fingerprint.h"
#include "store/packed_image.h"

struct weights_image {
    char *path; /* memory_free */
    char key[PACKED_IMAGE_KEY_BYTES];
};

/* Of a share of the checkpoint that has this fingerprint (of its files, as every weight counts):
 * the key says it, which rank's slices, and their numbers. STATUS_NOT_FOUND when there is no cache.
 */
enum status weights_image_name(struct weights_image *out, const struct fingerprint *files,
                               const struct weights_share *share, struct error *err) MUST_CHECK;

/* Maps the image to the memory that weights_load has taken for the same share, and says so in
 * weights->is_mapped. Where there is none that is of use it does not, and the memory can be written
 * as before; `progress` hears why, or the part of `bytes_on_disk` that has come. Fails where
 * progress->report does, or for want of memory. */
enum status weights_image_map(struct weights *weights, const struct weights_image *image,
                              uint64_t bytes_on_disk, const struct weights_progress *progress,
                              struct error *err) MUST_CHECK;

/* Bytes of the image, and writing it: of weights that were just loaded, with the experts where
 * weights_load left them. `report` hears bytes that were written, one call after another, and may
 * end it. On failure there is none, or an older one. */
uint64_t weights_image_bytes(const struct weights *weights);
enum status weights_image_write(const struct weights *weights, const struct weights_image *image,
                                const struct packed_read_progress *report,
                                struct error *err) MUST_CHECK;

#endif
