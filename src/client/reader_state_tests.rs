use super::*;

fn result(sequence: i64, attempt: i32) -> DeliveredResult {
    let delivery = Delivery { sequence, attempt, outcome_version: 1, ..Delivery::default() };
    DeliveredResult {
        delivery: Some(delivery),
        operation: None,
        redelivered: attempt > 1,
        payload: None,
    }
}

fn batch(sequences: &[i64], attempt: i32) -> DeliveryBatch {
    DeliveryBatch {
        results: sequences.iter().map(|number| result(*number, attempt)).collect(),
        resume_token: format!("after-{sequences:?}"),
    }
}

fn key(sequence: i64) -> ResultKey {
    ResultKey { sequence, outcome_version: 1 }
}

fn answer(book: &mut Book) {
    let answers: Vec<AckResult> = book
        .acks_due()
        .iter()
        .map(|target| AckResult {
            sequence: target.sequence,
            outcome: AckOutcome::Acked.into(),
            ..AckResult::default()
        })
        .collect();
    book.acks_answered(&answers);
}

/// New results and repeated ones, by number.
fn told(book: &mut Book) -> (Vec<i64>, Vec<i64>) {
    let (mut new, mut seen) = (Vec::new(), Vec::new());
    while let Some(news) = book.take_news() {
        match news {
            News::Result(result) => new.push(ResultKey::of_result(&result).sequence),
            News::AlreadySeen(again) => seen.push(again.key.sequence),
            _ => {}
        }
    }
    (new, seen)
}

#[test]
fn a_restart_with_saved_state_shows_nothing_twice() {
    let mut book = Book::new(ReaderState::new("i", "c"), 10);
    book.take_in(batch(&[1, 2, 3], 1));
    assert_eq!(told(&mut book), (vec![1, 2, 3], vec![]));
    (1..=3).for_each(|number| book.handled(key(number)));

    let saved = serde_json::to_string(&book.state).expect("the state is serialisable");
    let state: ReaderState = serde_json::from_str(&saved).expect("and comes back");
    let mut book = Book::new(state, 10);
    assert!(book.acks_due().is_empty(), "the copies come first");
    book.take_in(batch(&[1, 2, 3, 4], 2));
    assert_eq!(told(&mut book), (vec![4], vec![1, 2, 3]));
    assert_eq!(book.acks_due().len(), 3);
    answer(&mut book);
    assert!(book.state.handled_unacked.is_empty());
}

#[test]
fn a_lost_ack_is_sent_until_it_is_answered() {
    let mut book = Book::new(ReaderState::new("i", "c"), 10);
    book.take_in(batch(&[1], 1));
    book.handled(key(1));
    assert_eq!(book.acks_due().len(), 1);
    book.take_in(batch(&[1], 2));
    assert_eq!(book.acks_due().len(), 1);
    book.acks_answered(&[AckResult { sequence: 1, ..AckResult::default() }]);
    assert_eq!(book.acks_due().len(), 1, "an unspecified outcome is no answer");
    answer(&mut book);
    assert!(book.acks_due().is_empty());
    assert_eq!(told(&mut book), (vec![1], vec![1]));
}

#[test]
fn a_copy_of_an_acked_result_is_acked_again() {
    let mut book = Book::new(ReaderState::new("i", "c"), 10);
    book.take_in(batch(&[1], 1));
    book.handled(key(1));
    answer(&mut book);
    book.take_in(batch(&[1], 2));
    assert_eq!(book.acks_due().len(), 1);
    assert_eq!(told(&mut book), (vec![1], vec![1]));
}

#[test]
fn a_full_buffer_leaves_results_with_the_server() {
    let mut book = Book::new(ReaderState::new("i", "c"), 2);
    book.take_in(batch(&[1, 2, 3], 1));
    assert_eq!(told(&mut book), (vec![1, 2], vec![]));
    assert_eq!(book.totals.left_for_later, 1);
    book.take_in(batch(&[3], 2));
    assert_eq!(told(&mut book), (vec![3], vec![]), "it counts as new when it comes again");
}

#[test]
fn a_second_outcome_of_an_operation_is_new() {
    let mut book = Book::new(ReaderState::new("i", "c"), 10);
    book.take_in(batch(&[1], 1));
    let mut second = result(2, 1);
    if let Some(delivery) = &mut second.delivery {
        delivery.outcome_version = 2;
    }
    book.take_in(DeliveryBatch { results: vec![second], resume_token: String::new() });
    assert_eq!(told(&mut book), (vec![1, 2], vec![]));
    assert_eq!(book.state.resume_token, "after-[1]", "an empty token says nothing");
}

#[test]
fn what_ended_elsewhere_is_taken_back() {
    let mut book = Book::new(ReaderState::new("i", "c"), 10);
    book.take_in(batch(&[1, 2], 1));
    let gone = WithdrawnDelivery { sequence: 1, ..WithdrawnDelivery::default() };
    book.withdraw(Withdrawn { deliveries: vec![gone] });
    assert_eq!(told(&mut book), (vec![2], vec![]));
}

#[test]
fn what_ended_elsewhere_while_it_is_in_work_is_handed_to_nobody_else() {
    let gone = || {
        let gone = WithdrawnDelivery { sequence: 1, ..WithdrawnDelivery::default() };
        Withdrawn { deliveries: vec![gone] }
    };
    let in_work = || {
        let mut book = Book::new(ReaderState::new("i", "c"), 10);
        book.take_in(batch(&[1], 1));
        assert_eq!(told(&mut book), (vec![1], vec![]));
        book.withdraw(gone());
        assert!(!book.holds(key(1)), "no attempt is to be extended");
        book
    };
    // Redriven while its handler is running, and withdrawn and redriven once more.
    let mut book = in_work();
    book.take_in(batch(&[1], 2));
    assert!(book.holds(key(1)), "the new attempt is");
    book.withdraw(gone());
    book.take_in(batch(&[1], 3));
    assert_eq!(told(&mut book), (vec![], vec![1, 1]));
    book.handled(key(1));
    assert_eq!(book.acks_due().len(), 1, "its ack counts for the redriven one");
    book.take_in(batch(&[1], 4));
    assert_eq!(told(&mut book), (vec![], vec![1]));
    // The handler could not use it, or the application lets it go: what comes then is new.
    let ends: [fn(&mut Book); 2] = [|book| book.give_back(key(1)), |book| book.let_go(1)];
    for end in ends {
        let mut book = in_work();
        end(&mut book);
        book.take_in(batch(&[1], 2));
        assert_eq!(told(&mut book), (vec![1], vec![]));
        assert!(book.holds(key(1)));
    }
    // Nothing is let go that was shown again.
    let mut book = in_work();
    book.take_in(batch(&[1], 2));
    book.let_go(1);
    book.take_in(batch(&[1], 3));
    assert_eq!(told(&mut book), (vec![], vec![1, 1]));
}

#[test]
fn given_back_results_come_as_new() {
    let mut book = Book::new(ReaderState::new("i", "c"), 10);
    book.take_in(batch(&[1], 1));
    book.give_back(key(1));
    book.take_in(batch(&[1], 2));
    assert_eq!(told(&mut book), (vec![1, 1], vec![]));
}
