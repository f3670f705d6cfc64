/* Writes a recording for tests/cli/test_replay.sh: example_recording FILE. */
#include <stdio.h>

#include "replay/example.h"

int main(int argc, char **argv)
{
    static struct rig rig;
    struct error err;
    if (argc != 2)
        return 2;
    example_fill(&rig);
    if (recording_write(&rig.recording, argv[1], &err) == STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", err.message);
    return 1;
}
