#include "device/one_at_a_time.h"

#include <pthread.h>
#include <stdbool.h>

#include "base/memory.h"

/* A stream that asks, on the stack of its thread. */
struct asking {
    pthread_cond_t given;
    bool has_turn;
    struct asking *next;
};

struct one_at_a_time {
    struct turn turn;
    pthread_mutex_t lock; /* of what follows */
    bool is_taken;
    struct asking *first, **last;
    int asking_count;
};

static struct one_at_a_time *of_turn(struct turn *turn)
{
    return (struct one_at_a_time *)turn;
}

static void take(struct turn *turn, struct device *device)
{
    struct one_at_a_time *of = of_turn(turn);
    (void)device;
    pthread_mutex_lock(&of->lock);
    if (of->is_taken) {
        struct asking own = {.given = PTHREAD_COND_INITIALIZER};
        *of->last = &own;
        of->last = &own.next;
        of->asking_count++;
        while (!own.has_turn)
            pthread_cond_wait(&own.given, &of->lock);
        pthread_cond_destroy(&own.given);
    }
    of->is_taken = true;
    pthread_mutex_unlock(&of->lock);
}

/* From hand to hand: nobody who asks later comes in between. */
static void give(struct turn *turn, struct device *device)
{
    struct one_at_a_time *of = of_turn(turn);
    (void)device;
    pthread_mutex_lock(&of->lock);
    struct asking *next = of->first;
    ASSERT(of->is_taken);
    of->is_taken = next != NULL;
    if (next != NULL) {
        of->first = next->next;
        if (of->first == NULL)
            of->last = &of->first;
        of->asking_count--;
        next->has_turn = true;
        pthread_cond_signal(&next->given);
    }
    pthread_mutex_unlock(&of->lock);
}

/* No memory is closed. */
static void no_change(struct turn *turn, struct device *device)
{
    (void)turn;
    (void)device;
}

enum status one_at_a_time_create(struct turn **out, struct error *err)
{
    struct one_at_a_time *of;
    TRY(memory_get((void **)&of, 1, sizeof *of, "the ranks' turns", err));
    of->turn = (struct turn){take, give, no_change, no_change};
    pthread_mutex_init(&of->lock, NULL);
    of->last = &of->first;
    *out = &of->turn;
    return STATUS_OK;
}

int one_at_a_time_asking(struct turn *turn)
{
    struct one_at_a_time *of = of_turn(turn);
    pthread_mutex_lock(&of->lock);
    int count = of->asking_count;
    pthread_mutex_unlock(&of->lock);
    return count;
}

void one_at_a_time_destroy(struct turn *turn)
{
    if (turn == NULL)
        return;
    pthread_mutex_destroy(&of_turn(turn)->lock);
    memory_free(turn);
}
