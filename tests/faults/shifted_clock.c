/* Preloaded: the clock of the process is off by the seconds, a double, in the file SHIFTED_CLOCK_FILE, which may change
   at any time. The monotonic clock is left alone. The same for Python is tests/e2e/shifted_clock. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define LONGEST_WAIT 0.5

typedef int timedwait(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

static const volatile double none = 0, *shift = &none;
static timedwait *wait_until;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SHIFTED_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file >= 0) {
        void *found = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        if (found != MAP_FAILED) shift = found;
        close(file);
    }
}

static void add(struct timespec *time, double seconds) {
    long long nanoseconds = time->tv_sec * SECOND + time->tv_nsec + (long long)(seconds * SECOND);
    time->tv_sec = nanoseconds / SECOND;
    time->tv_nsec = nanoseconds % SECOND;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) add(time, *shift);
    return failed;
}

int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

static int is_before(const struct timespec *one, const struct timespec *other) {
    return one->tv_sec != other->tv_sec ? one->tv_sec < other->tv_sec : one->tv_nsec < other->tv_nsec;
}

/* Its deadline is by the shifted clock, and the system has the other. A thread that waits must also notice a jump of the
   clock: it wakes up after LONGEST_WAIT at the latest, as threads may without a reason, and looks at the clock again. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline) {
    struct timespec real = *deadline, latest;
    int result, is_cut;
    if (!wait_until) wait_until = (timedwait *)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!wait_until) wait_until = (timedwait *)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    add(&real, -*shift);
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &latest);
    add(&latest, LONGEST_WAIT);
    is_cut = is_before(&latest, &real);
    result = wait_until(condition, mutex, is_cut ? &latest : &real);
    return is_cut && result == ETIMEDOUT ? 0 : result;
}
