#include "base/cache_folder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"

enum status cache_folder_append(struct text *path, const char *what, struct error *err)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"PHASOR_CACHE", ""}, {"XDG_CACHE_HOME", "/phasor"}, {"HOME", "/.cache/phasor"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (value == NULL || *value != '/') /* of the XDG rules: a relative one counts as none */
            continue;
        text_append_format(path, "%s%s", value, places[i].below);
        return STATUS_OK;
    }
    return error_set(err, STATUS_NOT_FOUND,
                     "there is no place for %s: PHASOR_CACHE, XDG_CACHE_HOME and HOME are "
                     "not set to absolute paths; set one of them, or name a file with --output "
                     "where the command has it",
                     what);
}

enum status cache_folder_make_above(const char *path, struct error *err)
{
    enum status status = STATUS_OK;
    char *folder = memory_copy_text(path, strlen(path));
    if (folder == NULL)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate a path for %s", path);
    for (char *slash = strchr(folder + 1, '/'); slash != NULL && status == STATUS_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            status = error_set_errno(err, errno, "cannot make the folder %s", folder);
        *slash = '/';
    }
    memory_free(folder);
    return status;
}
