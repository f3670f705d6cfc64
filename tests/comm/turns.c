#include "turns.h"

#include <string.h>

static struct turns *turns_of(struct turn *turn)
{
    return (struct turns *)turn;
}

static void take(struct turn *turn, struct device *device)
{
    struct turns *turns = turns_of(turn);
    pthread_mutex_lock(&turns->lock);
    while (turns->holder != NULL)
        pthread_cond_wait(&turns->given, &turns->lock);
    turns->holder = device;
    pthread_mutex_unlock(&turns->lock);
    device_cpu_protect(device, false);
}

static void give(struct turn *turn, struct device *device)
{
    struct turns *turns = turns_of(turn);
    ASSERT(turns->holder == device);
    device_cpu_protect(device, true);
    pthread_mutex_lock(&turns->lock);
    turns->holder = NULL;
    pthread_cond_broadcast(&turns->given);
    pthread_mutex_unlock(&turns->lock);
}

static void protect_others(struct turns *turns, struct device *device, bool closed)
{
    ASSERT(turns->holder == device);
    for (int i = 0; i < turns->device_count; i++) {
        if (turns->devices[i] != device)
            device_cpu_protect(turns->devices[i], closed);
    }
}

static void open_all(struct turn *turn, struct device *device)
{
    protect_others(turns_of(turn), device, false);
}

static void close_others(struct turn *turn, struct device *device)
{
    protect_others(turns_of(turn), device, true);
}

void turns_init(struct turns *turns)
{
    *turns = (struct turns){.turn = {take, give, open_all, close_others}};
    pthread_mutex_init(&turns->lock, NULL);
    pthread_cond_init(&turns->given, NULL);
}

void turns_begin(struct turns *turns, struct box *box)
{
    for (int r = 0; r < box_rank_count(box); r++) {
        turns->devices[turns->device_count++] = box_device(box, r);
        device_cpu_protect(box_device(box, r), true);
    }
}

void turns_deinit(struct turns *turns)
{
    pthread_cond_destroy(&turns->given);
    pthread_mutex_destroy(&turns->lock);
}
