/* Ranks that run one at a time, with the memory of all others closed (struct turn in
 * device/device.h): who touches what is not its own, outside the copying of a collective, dies of
 * it. */
#ifndef TESTS_COMM_TURNS_H
#define TESTS_COMM_TURNS_H

#include <pthread.h>

#include "comm/box.h"

struct turns {
    struct turn turn; /* for box_params */
    pthread_mutex_t lock;
    pthread_cond_t given;
    struct device *holder; /* whose turn it is; NULL: nobody's */
    struct device *devices[COMM_RANKS_MAX];
    int device_count;
};

void turns_init(struct turns *turns);
void turns_begin(struct turns *turns, struct box *box); /* closes all memory; before any work */
void turns_deinit(struct turns *turns);                 /* after box_close */

#endif
