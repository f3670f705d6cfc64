/* Writes a recording for tests/cli/test_replay.sh: example_recording FILE [ROWS | ABOUT],
 * of which an earlier run did so many of four, or which says that of itself. */
#include <stdio.h>
#include <stdlib.h>

#include "replay/example.h"

int main(int argc, char **argv)
{
    static struct rig rig;
    struct error err;
    static char about[128];
    if (argc < 2 || argc > 3)
        return 2;
    example_fill(&rig);
    if (argc == 3 && *argv[2] == '{') {
        rig.recording.about = argv[2];
    } else if (argc == 3) {
        snprintf(about, sizeof about, "{\"rows\": 4, \"rows_before\": %d}", atoi(argv[2]));
        rig.recording.about = about;
    }
    if (recording_write(&rig.recording, argv[1], &err) == STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", err.message);
    return 1;
}
