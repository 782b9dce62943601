"""The networks: sizes, shapes and initial weights."""

import pytest
import torch
from torch import nn

from models.cifar import ResNet, resnet20, resnet56, resnet110, vgg16, vgg19
from models.cifar.resnet import BasicBlock
from models.cifar.vgg import VGG
from models.digits import digits_cnn
from models.lenet import lenet

# Worked out by hand from the papers' tables; each VGG is its convolutions, two BatchNorm vectors a
# channel, and 512 * 10 + 10.
PARAMETERS = {
    resnet20: 269_722,
    resnet56: 853_018,
    resnet110: 1_727_962,
    vgg16: 14_724_042,
    vgg19: 20_035_018,
    digits_cnn: 36_010,
}


def image_shape(make):
    return (1, 8, 8) if make is digits_cnn else (3, 32, 32)


@pytest.mark.parametrize(('make', 'count'), PARAMETERS.items())
def test_number_of_parameters(make, count):
    assert sum(p.numel() for p in make().parameters()) == count


@pytest.mark.parametrize('make', PARAMETERS)
def test_logits_of_each_class_and_a_gradient_for_each_parameter(make):
    model = make(num_classes=7)
    logits = model(torch.randn(2, *image_shape(make)))
    assert logits.shape == (2, 7)
    logits.logsumexp(1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize('make', PARAMETERS)
def test_initial_weights_follow_kaiming_and_the_seed(make):
    torch.manual_seed(1)
    model = make()
    torch.manual_seed(1)
    again = make()
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight
            fan_out = weight.shape[0] * weight.shape[2] * weight.shape[3]
            spread = (2 / fan_out) ** 0.5
            tolerance = 5 * spread / weight.numel() ** 0.5  # five standard errors, or more
            assert abs(weight.std().item() - spread) < tolerance
            assert abs(weight.mean().item()) < tolerance


# Not for the deeper residual networks: each of their blocks adds to the variance.
@pytest.mark.parametrize('make', [resnet20, vgg16, digits_cnn])
def test_initial_loss_is_near_that_of_a_guess(make):
    torch.manual_seed(0)
    model = make()
    logits = model(torch.randn(32, *image_shape(make)))
    loss = nn.functional.cross_entropy(logits, torch.randint(10, (32,)))
    assert abs(loss.item() - 2.303) < 0.7


def test_shortcut_subsamples_and_fills_new_channels_with_zeros():
    x = torch.arange(2 * 4 * 4.0).view(1, 2, 4, 4) + 1
    out = BasicBlock(2, 4, stride=2).shortcut(x)
    assert out.shape == (1, 4, 2, 2)
    assert torch.equal(out[:, 1:3], x[:, :, ::2, ::2])
    assert not out[:, 0].any()
    assert not out[:, 3].any()


@pytest.mark.parametrize('depth', [2, 18, 21])
def test_resnet_refuses_a_depth_that_is_not_6n_plus_2(depth):
    with pytest.raises(ValueError, match='6n'):
        ResNet(depth)


@pytest.mark.parametrize('shape', [(32, 32), (28, 28), (27, 31), (1, 2)])
def test_lenet_surrounds_smaller_images_by_zeros(shape):
    model, images = lenet(), torch.randn(2, 1, *shape)
    whole = torch.zeros(2, 1, 32, 32)
    top, left = ((32 - side) // 2 for side in shape)
    whole[:, :, top : top + shape[0], left : left + shape[1]] = images
    assert torch.equal(model(images), model(whole))


@pytest.mark.parametrize('shape', [(33, 33), (64, 64), (32, 40), (40, 8)])
def test_lenet_refuses_larger_images(shape):
    text = f'at most 32 x 32 pixels, got {shape[0]} x {shape[1]}: resize them'
    with pytest.raises(ValueError, match=text):
        lenet()(torch.randn(2, 1, *shape))


def test_vgg_refuses_an_unknown_depth():
    with pytest.raises(ValueError, match='16, 19'):
        VGG(17)
