//! Runs the partitions of a network, each in a thread of its own, slot by slot: conservative parallel simulation. The slot
//! of the calendar is the lookahead, so what a partition does in a slot needs nothing that another does in it.
//!
//! At the end of a slot each partition leaves its mail and says how far it has come. When all have, each takes its mail and
//! decides from what all have said whether and where to go on; they all decide the same. So threads meet once a slot.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::barrier::{Barrier, Broken};
use crate::mailbox::Mail;
use crate::partition::{Partition, Standing};

/// How long partitions run before their owner wants to look at them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    /// Until this number of events has been processed,
    pub events: u64,
    /// or all messages are finished,
    pub messages: u64,
    /// or a slot comes that is not before this one.
    pub slots_end: u64,
}

impl Stretch {
    /// The slot with which all partitions go on; `None` if they have come to the end of the stretch.
    pub fn next_slot(&self, all: &Standing) -> Option<u64> {
        let goes_on = all.events < self.events
            && all.finished < self.messages
            && !all.is_late
            && all.next_slot < self.slots_end;
        goes_on.then_some(all.next_slot)
    }

    /// Runs the partitions from a slot on.
    pub fn run(&self, partitions: &mut [Partition], slot: u64) {
        match partitions {
            [partition] => self.run_one(partition, slot),
            _ => self.run_all(partitions, slot),
        }
    }

    fn run_one(&self, partition: &mut Partition, mut slot: u64) {
        loop {
            partition.run_slot(slot);
            match self.next_slot(&partition.standing()) {
                Some(next) => slot = next,
                None => return,
            }
        }
    }

    /// The last partition runs in the caller's thread. A panic of any thread becomes one of the caller.
    fn run_all(&self, partitions: &mut [Partition], slot: u64) {
        let meeting = Meeting::new(partitions.len());
        let run = |number: usize, partition: &mut Partition| {
            let _guard = GivesUp(&meeting.barrier);
            // Another thread has panicked; the scope reports it.
            let _ = self.run_in_thread(&meeting, number, partition, slot);
        };
        let run = &run;
        std::thread::scope(|scope| {
            let mut last = None;
            for (number, partition) in partitions.iter_mut().enumerate() {
                if number + 1 == meeting.boards[0].len() {
                    last = Some((number, partition));
                } else {
                    scope.spawn(move || run(number, partition));
                }
            }
            if let Some((number, partition)) = last {
                run(number, partition);
            }
        });
    }

    fn run_in_thread(
        &self,
        meeting: &Meeting,
        number: usize,
        partition: &mut Partition,
        mut slot: u64,
    ) -> Result<(), Broken> {
        // A partition may leave its next mail before another has taken the last one: there are two boards.
        for board in meeting.boards.iter().cycle() {
            partition.run_slot(slot);
            lock(&board[number]).post(partition);
            meeting.barrier.wait()?;
            let mut all = Standing { next_slot: u64::MAX, ..Standing::default() };
            for mailbox in board {
                let mut mailbox = lock(mailbox);
                all = all.with(mailbox.standing);
                partition.receive_mail(&mut mailbox.mail[number]);
            }
            match self.next_slot(&all) {
                Some(next) => slot = next,
                None => break,
            }
        }
        Ok(())
    }
}

/// Where a partition leaves its mail and its standing.
#[derive(Default)]
struct Mailbox {
    standing: Standing,
    /// By receiver.
    mail: Vec<Mail>,
}

impl Mailbox {
    /// A partition leaves its mail, and takes what is left of the mail before last: its memory.
    fn post(&mut self, partition: &mut Partition) {
        self.standing = partition.standing();
        std::mem::swap(&mut self.mail, &mut partition.clock.mail);
    }
}

/// Where all partitions meet.
struct Meeting {
    barrier: Barrier,
    /// By partition, for slots by turns.
    boards: [Vec<Mutex<Mailbox>>; 2],
}

impl Meeting {
    fn new(partitions: usize) -> Self {
        let mailbox = || {
            Mutex::new(Mailbox {
                mail: (0..partitions).map(|_| Mail::default()).collect(),
                ..Mailbox::default()
            })
        };
        let board = || (0..partitions).map(|_| mailbox()).collect();
        Meeting { barrier: Barrier::new(partitions), boards: [board(), board()] }
    }
}

/// No thread holds a lock while it runs what may panic.
fn lock(mailbox: &Mutex<Mailbox>) -> MutexGuard<'_, Mailbox> {
    mailbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the others when its thread panics.
struct GivesUp<'a>(&'a Barrier);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up();
        }
    }
}
