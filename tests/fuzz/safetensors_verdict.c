/* Reads names of files from standard input and prints for each "accept" or "reject: <reason>". */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "model/safetensors.h"

int main(void)
{
    char path[4096];
    while (fgets(path, sizeof path, stdin) != NULL) {
        path[strcspn(path, "\n")] = 0;
        struct safetensors file = {0};
        struct arena arena = {0};
        struct error err;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            perror(path);
            return 1;
        }
        if (safetensors_read_header(&file, &arena, fd, "file", &err) == STATUS_OK)
            puts("accept");
        else
            printf("reject: %s\n", err.message);
        close(fd);
        arena_deinit(&arena);
    }
    return 0;
}
