"""DistributedOptimizer in the loops that people write."""

import pytest
import torch
from dgc_helpers import exact, loss, parameters, set_gradients, train, values, wrap
from torch.nn import Parameter

import dgc


class TestLoops:
    """Loops that people write."""

    def trained(self, loop, **settings):
        named = parameters()
        optimizer = wrap(named, exact(), momentum=0.9, **settings)
        loop(named, optimizer)
        return values(named)

    def usual(self, named, optimizer):
        train(optimizer, named, 4)

    def test_zero_grad_with_set_to_none(self):
        def loop(named, optimizer):
            for step in range(4):
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                loss(named, 0, step).backward()
                optimizer.step()

        assert all(map(torch.equal, self.trained(loop), self.trained(self.usual)))

    def test_zero_grad_after_the_step_or_by_the_model_or_by_hand(self):
        def after(named, optimizer):
            for step in range(4):
                loss(named, 0, step).backward()
                optimizer.step()
                optimizer.zero_grad()

        def by_hand(named, optimizer):
            for step in range(4):
                for _, parameter in named:
                    parameter.grad = None
                loss(named, 0, step).backward()
                optimizer.step()

        for loop in (after, by_hand):
            assert all(map(torch.equal, self.trained(loop), self.trained(self.usual)))

    def test_a_closure(self):
        losses = []

        def loop(named, optimizer):
            for step in range(4):

                def closure(step=step):
                    optimizer.zero_grad()
                    value = loss(named, 0, step)
                    value.backward()
                    return value

                losses.append(optimizer.step(closure))

        assert all(map(torch.equal, self.trained(loop), self.trained(self.usual)))
        assert [value.item() > 0 for value in losses] == [True] * 4

    def test_gradients_accumulate_over_batches_as_over_one_big_batch(self):
        def worker(batches_per_step):
            def work(engine):
                named = parameters()
                optimizer = wrap(named, exact(), engine, batches_per_step=batches_per_step)
                for step in range(4):
                    optimizer.zero_grad()
                    parts = [loss(named, engine.rank, 2 * step + half) / 2 for half in (0, 1)]
                    for part in parts if batches_per_step == 2 else [sum(parts)]:
                        part.backward()
                    optimizer.step()
                return values(named), optimizer.reducer.progress.sent

            return work

        halves, whole = dgc.simulate(2, worker(2)), dgc.simulate(2, worker(1))
        torch.testing.assert_close(halves[0][0], whole[0][0], rtol=1e-5, atol=1e-6)
        assert halves[0][1] == whole[0][1]

    def test_a_step_may_come_before_all_batches_did(self):
        named, one = parameters(), parameters()
        train(wrap(named, exact(), batches_per_step=5), named, 3)
        train(wrap(one, exact()), one, 3)
        assert all(map(torch.equal, values(named), values(one)))

    def test_a_parameter_used_twice_in_one_pass_counts_once(self):
        parameter = Parameter(torch.ones(3, 3))
        optimizer = wrap([('w', parameter)], dgc.dense(), lr=1.0)
        (parameter.sum() + 2 * parameter.sum()).backward()
        optimizer.step()
        assert parameter.tolist() == [[-2.0] * 3] * 3

    @pytest.mark.parametrize('batches', [1, 2])
    def test_one_backward_pass_too_many_is_an_error(self, batches):
        named = parameters()
        optimizer = wrap(named, exact(), batches_per_step=batches)
        for _ in range(batches):
            loss(named, 0, 0).backward()
        message = f'got {batches + 1} gradients in one step, batches_per_step is {batches}'
        with pytest.raises(RuntimeError, match=message):
            loss(named, 0, 1).backward()
        assert optimizer.steps == 0

    def test_a_backward_pass_between_synchronize_and_step_is_an_error(self):
        named = parameters()
        optimizer = wrap(named, exact())
        loss(named, 0, 0).backward()
        optimizer.synchronize()
        with pytest.raises(RuntimeError, match=r'between synchronize\(\) and step'):
            loss(named, 0, 1).backward()

    def test_zeroing_what_is_on_its_way_is_an_error(self):
        named = parameters()
        optimizer = wrap(named, exact())
        loss(named, 0, 0).backward()
        with pytest.raises(RuntimeError, match='would lose gradients'):
            optimizer.zero_grad()

    def test_between_synchronize_and_step_the_gradient_is_the_mean(self):
        def worker(engine):
            named = parameters({'w': (2, 2)})
            optimizer = wrap(named, dgc.dense(), engine, lr=1.0)
            before = values(named)[0]
            set_gradients(named, {'w': torch.full((2, 2), float(engine.rank))})
            optimizer.synchronize()
            mean = named[0][1].grad.clone()
            named[0][1].grad.mul_(10)  # a user's own clipping
            optimizer.step()
            return mean.tolist(), (before - values(named)[0]).round().tolist()

        assert dgc.simulate(3, worker) == [([[1.0] * 2] * 2, [[10.0] * 2] * 2)] * 3

    def test_learning_rate_schedulers_work_on_it(self):
        named, plain = parameters(), parameters()
        optimizer = wrap(named, dgc.dense())
        reference = torch.optim.SGD([p for _, p in plain], lr=0.1)
        schedulers = [
            torch.optim.lr_scheduler.SequentialLR(
                one,
                [
                    torch.optim.lr_scheduler.LinearLR(one, 0.1, total_iters=2),
                    torch.optim.lr_scheduler.CosineAnnealingLR(one, T_max=4),
                ],
                milestones=[2],
            )
            for one in (optimizer, reference)
        ]
        rates = []
        for step in range(6):
            for named_, one, scheduler in zip(
                (named, plain), (optimizer, reference), schedulers, strict=True
            ):
                train(one, named_, [step])
                scheduler.step()
            rates.append(
                (optimizer.param_groups[0]['lr'], optimizer.optimizer.param_groups[0]['lr'])
            )
        assert [ours for ours, _ in rates] == [inner for _, inner in rates]
        assert len({ours for ours, _ in rates}) == 6
        torch.testing.assert_close(values(named), values(plain), rtol=1e-5, atol=1e-6)
