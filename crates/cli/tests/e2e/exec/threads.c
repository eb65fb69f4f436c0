/* A server with a thread for each connection, which speaks as much of MySQL's
 * protocol as the preloaded library reads, and waits as MariaDB does: a look with
 * MSG_DONTWAIT, then poll. Small enough for valgrind, and it does on request what
 * a database does only in emergencies.
 *
 *     threads PORT [IDLE_MS]
 *
 * Every query is answered with OK and the number of connections that are served,
 * "closed" with how many statements were closed (which is not answered).
 * "begin" and "commit" open and end a transaction; "fork" leaves the connection
 * to a child process; "exec" runs another program; "shutdown" ends all others;
 * "signals" sends the server's own signal to the worker, and looks whether mask
 * and dispositions are still those that the server began with; "cancel" ends
 * threads in each call in which they can wait; "stray" answers from less memory
 * than it says, as a faulty server might. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4096 };

static atomic_int served, closed;
static atomic_bool open_at[MOST];
static int idle_ms = -1;

/* Fills a buffer; 0 if the client has gone or says nothing for too long. */
static int receive(int fd, unsigned char *to, size_t length)
{
    while (length > 0) {
        ssize_t got = recv(fd, to, length, MSG_DONTWAIT);
        if (got > 0) {
            to += got;
            length -= (size_t)got;
            continue;
        }
        if (got == 0 || (errno != EAGAIN && errno != EINTR))
            return 0;
        struct pollfd one = {.fd = fd, .events = POLLIN};
        int ready = poll(&one, 1, idle_ms);
        if (ready == 0 || (ready < 0 && errno != EINTR))
            return 0;
    }
    return 1;
}

static int reply(int fd, unsigned char sequence, const void *payload, unsigned char length)
{
    unsigned char packet[4 + 255] = {length, 0, 0, sequence};
    memcpy(packet + 4, payload, length);
    return send(fd, packet, 4u + length, MSG_NOSIGNAL) == 4 + length;
}

static int ok(int fd, unsigned char sequence, int in_transaction, atomic_int *count)
{
    unsigned char packet[7] = {0, (unsigned char)atomic_load(count), 0, 0, 0, 0, 0};
    packet[3] = in_transaction ? 1 : 2;
    return reply(fd, sequence, packet, sizeof packet);
}

static void answer_from_too_little(int fd)
{
    /* The compiler is not to know it. */
    static volatile size_t length = 11;
    unsigned char *packet = malloc(3);
    if (!packet)
        abort();
    memcpy(packet, "\7\0\0", 3);
    send(fd, packet, length, MSG_NOSIGNAL);
    free(packet);
}

static void shut_others(int own)
{
    for (int fd = 0; fd < MOST; fd++)
        if (fd != own && atomic_load(&open_at[fd]))
            shutdown(fd, SHUT_RDWR);
}

static void run_program(void)
{
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)0);
        _exit(1);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        abort();
}

/* What the server itself does about signals: it handles the highest but one, and
 * blocks the one below, each of which something else might have taken for free. */
static struct sigaction usual[128];
static sigset_t usual_mask;
static _Thread_local volatile sig_atomic_t heard;

static void hear(int number)
{
    (void)number;
    heard = heard + 1;
}

static void set_up_signals(void)
{
    struct sigaction own = {.sa_handler = hear};
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGRTMAX - 2);
    if (sigaction(SIGRTMAX - 1, &own, 0) || pthread_sigmask(SIG_BLOCK, &blocked, 0))
        abort();
    pthread_sigmask(SIG_BLOCK, 0, &usual_mask);
    for (int number = 1; number <= SIGRTMAX; number++)
        sigaction(number, 0, &usual[number]);
}

static void check_signals(void)
{
    sigset_t mask;
    int before = heard;
    if (raise(SIGRTMAX - 1) || heard != before + 1 || pthread_sigmask(SIG_BLOCK, 0, &mask))
        abort();
    for (int number = 1; number <= SIGRTMAX; number++) {
        struct sigaction now = {0};
        sigaction(number, 0, &now);
        if (now.sa_handler != usual[number].sa_handler ||
            now.sa_flags != usual[number].sa_flags ||
            sigismember(&mask, number) != sigismember(&usual_mask, number))
            abort();
    }
}

/* Where a thread waits until it is cancelled; it leaves by EXIT itself. */
enum call {
    READ, READV, RECV, RECVFROM, RECVMSG, POLL, PPOLL, EPOLL_WAIT, EPOLL_PWAIT,
    ACCEPT, ACCEPT4, WRITE, SEND, EXIT, CALLS
};

struct waiter {
    enum call call;
    int listener, fd;
    atomic_int tid, cleaned;
};

static void wait_for_epoll(const struct waiter *waiter)
{
    struct epoll_event event = {.events = EPOLLIN};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, waiter->fd, &event))
        abort();
    if (waiter->call == EPOLL_WAIT)
        epoll_wait(epoll, &event, 1, -1);
    else
        epoll_pwait(epoll, &event, 1, -1, 0);
}

static void fill(int fd)
{
    static const char bytes[65536];
    while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
}

static ssize_t wait_in_call(const struct waiter *waiter)
{
    char byte = 0;
    int fd = waiter->fd;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct pollfd one = {.fd = fd, .events = POLLIN};
    switch (waiter->call) {
    case READ: return read(fd, &byte, 1);
    case READV: return readv(fd, &part, 1);
    case RECV: return recv(fd, &byte, 1, 0);
    case RECVFROM: return recvfrom(fd, &byte, 1, 0, 0, 0);
    case RECVMSG: return recvmsg(fd, &message, 0);
    case POLL: return poll(&one, 1, -1);
    case PPOLL: return ppoll(&one, 1, 0, 0);
    case ACCEPT: return accept(waiter->listener, 0, 0);
    case ACCEPT4: return accept4(waiter->listener, 0, 0, SOCK_CLOEXEC);
    case WRITE: fill(fd); return write(fd, &byte, 1);
    case SEND: fill(fd); return send(fd, &byte, 1, 0);
    case EXIT: pthread_exit(PTHREAD_CANCELED);
    default: wait_for_epoll(waiter); return 0;
    }
}

static void clean_up(void *argument)
{
    atomic_store(&((struct waiter *)argument)->cleaned, 1);
}

static void *waiting(void *argument)
{
    struct waiter *waiter = argument;
    pthread_cleanup_push(clean_up, waiter);
    atomic_store(&waiter->tid, (int)syscall(SYS_gettid));
    wait_in_call(waiter);
    pthread_cleanup_pop(0);
    return 0;
}

static int is_asleep(int tid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = tid ? fopen(path, "r") : 0;
    if (!file)
        return 0;
    int found = fscanf(file, "%*d (%*[^)]) %c", &state);
    fclose(file);
    return found == 1 && state == 'S';
}

/* Cancels a thread in a call of an accepted connection that nothing comes from. */
static void check_cancel(enum call call)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;
    struct waiter waiter = {.call = call, .listener = socket(AF_INET, SOCK_STREAM, 0)};
    int client = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(waiter.listener, (struct sockaddr *)&at, length) || listen(waiter.listener, 1) ||
        getsockname(waiter.listener, (struct sockaddr *)&at, &length) ||
        connect(client, (struct sockaddr *)&at, length))
        abort();
    waiter.fd = accept(waiter.listener, 0, 0);
    pthread_t thread;
    void *result = 0;
    if (waiter.fd < 0 || pthread_create(&thread, 0, waiting, &waiter))
        abort();
    while (call != EXIT && !is_asleep(atomic_load(&waiter.tid)))
        usleep(1000);
    if (call != EXIT)
        pthread_cancel(thread);
    if (pthread_join(thread, &result) || result != PTHREAD_CANCELED ||
        !atomic_load(&waiter.cleaned))
        abort();
    close(waiter.fd);
    close(waiter.listener);
    close(client);
}

/* A child goes on with the connection; whether this is the child. */
static int leave_to_child(void)
{
    pid_t child = fork();
    if (child < 0)
        abort();
    return child == 0;
}

/* Queries until there are no more; whether this is a child by then. */
static int serve(int fd)
{
    unsigned char head[4], body[65536];
    int in_transaction = 0, is_child = 0;
    while (receive(fd, head, 4)) {
        size_t length = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16;
        if (length == 0 || length > sizeof body || !receive(fd, body, length))
            break;
        if (body[0] == 0x19) {
            atomic_fetch_add(&closed, 1);
            continue;
        }
        if (body[0] != 3)
            break;
        char *text = (char *)body + 1;
        length--;
        if (length == 5 && !memcmp(text, "begin", 5))
            in_transaction = 1;
        else if (length == 6 && !memcmp(text, "commit", 6))
            in_transaction = 0;
        else if (length == 8 && !memcmp(text, "shutdown", 8))
            shut_others(fd);
        else if (length == 4 && !memcmp(text, "exec", 4))
            run_program();
        else if (length == 7 && !memcmp(text, "signals", 7))
            check_signals();
        else if (length == 6 && !memcmp(text, "cancel", 6))
            for (enum call call = READ; call < CALLS; call++)
                check_cancel(call);
        else if (length == 5 && !memcmp(text, "stray", 5))
            answer_from_too_little(fd);
        else if (length == 4 && !memcmp(text, "fork", 4)) {
            if (!leave_to_child())
                return 0;
            is_child = 1;
        }
        int asks_closed = length == 6 && !memcmp(text, "closed", 6);
        if (!ok(fd, 1, in_transaction, asks_closed ? &closed : &served))
            break;
    }
    return is_child;
}

static void *connection(void *argument)
{
    int fd = (int)(long)argument;
    static const unsigned char greeting[] = "\x0a" "5.5.5-threads";
    unsigned char head[4], body[256];
    atomic_fetch_add(&served, 1);
    atomic_store(&open_at[fd], 1);
    if (reply(fd, 0, greeting, sizeof greeting) && receive(fd, head, 4) && head[1] == 0 &&
        receive(fd, body, head[0]) && ok(fd, 2, 0, &served) && serve(fd))
        exit(0);
    atomic_store(&open_at[fd], 0);
    atomic_fetch_sub(&served, 1);
    close(fd);
    return 0;
}

static void *accepting(void *argument)
{
    int listener = (int)(long)argument;
    for (;;) {
        int fd = accept(listener, 0, 0);
        pthread_t thread;
        if (fd < 0 || fd >= MOST || pthread_create(&thread, 0, connection, (void *)(long)fd))
            abort();
        pthread_detach(thread);
    }
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    if (count > 2)
        idle_ms = atoi(arguments[2]);
    sigset_t end;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    set_up_signals();
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1, signal_number;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_port = htons((uint16_t)atoi(arguments[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 512))
        return 1;
    pthread_t thread;
    if (pthread_create(&thread, 0, accepting, (void *)(long)listener))
        return 1;
    sigwait(&end, &signal_number);
    exit(0);
}
