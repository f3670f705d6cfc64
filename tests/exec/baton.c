#include "baton.h"

#include <pthread.h>
#include <stdatomic.h>

/* Who may run. */
struct baton {
    struct turn turn;
    pthread_mutex_t lock;
    pthread_cond_t free;
    struct device *holder;
    int running; /* streams that have taken and not given */
    struct box *box;
    bool is_armed; /* else all may run: while the model is loaded */
    atomic_int changes;
};

static struct baton baton;

static void protect_others(const struct device *own, bool closed)
{
    for (int r = 0; r < box_rank_count(baton.box); r++) {
        if (box_device(baton.box, r) != own)
            device_cpu_protect(box_device(baton.box, r), closed);
    }
}

static void take(struct turn *turn, struct device *device)
{
    (void)turn;
    pthread_mutex_lock(&baton.lock);
    while (baton.is_armed && baton.holder != NULL)
        pthread_cond_wait(&baton.free, &baton.lock);
    if (baton.is_armed) {
        baton.holder = device;
        device_cpu_protect(device, false);
        atomic_fetch_add(&baton.changes, 1);
    }
    baton.running++;
    pthread_mutex_unlock(&baton.lock);
}

static void give(struct turn *turn, struct device *device)
{
    (void)turn;
    pthread_mutex_lock(&baton.lock);
    if (baton.is_armed && baton.holder == device) {
        device_cpu_protect(device, true);
        baton.holder = NULL;
    }
    baton.running--;
    pthread_cond_broadcast(&baton.free);
    pthread_mutex_unlock(&baton.lock);
}

static void open_all(struct turn *turn, struct device *device)
{
    (void)turn;
    if (baton.is_armed)
        protect_others(device, false);
}

static void close_others(struct turn *turn, struct device *device)
{
    (void)turn;
    if (baton.is_armed)
        protect_others(device, true);
}

void baton_open(void)
{
    baton = (struct baton){.turn = {take, give, open_all, close_others}};
    pthread_mutex_init(&baton.lock, NULL);
    pthread_cond_init(&baton.free, NULL);
}

void baton_arm(struct box *box)
{
    pthread_mutex_lock(&baton.lock);
    while (baton.running > 0)
        pthread_cond_wait(&baton.free, &baton.lock);
    baton.box = box;
    baton.is_armed = true;
    protect_others(NULL, true);
    pthread_mutex_unlock(&baton.lock);
}

void baton_disarm(void)
{
    pthread_mutex_lock(&baton.lock);
    baton.is_armed = false;
    protect_others(NULL, false);
    pthread_cond_broadcast(&baton.free);
    pthread_mutex_unlock(&baton.lock);
}

struct turn *baton_turn(void)
{
    return &baton.turn;
}

int baton_changes(void)
{
    return atomic_load(&baton.changes);
}
