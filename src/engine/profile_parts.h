/* Parts of a profile's file that a calibration which was interrupted has, too. */
#ifndef PHASOR_ENGINE_PROFILE_PARTS_H
#define PHASOR_ENGINE_PROFILE_PARTS_H

#include "base/json.h"
#include "base/json_writer.h"
#include "engine/profile_file.h"

/* "phasor" and "box" of `root`. */
enum status profile_identity_read(struct profile_identity *out, const json_t *root,
                                  const char *file, struct error *err) MUST_CHECK;
void profile_identity_write(struct json_writer *json, const struct profile_identity *identity);

#endif
